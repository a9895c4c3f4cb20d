"""Exercise 5.4, a gated pattern."""

import math

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check, normal


def spec(pattern: Tensor, x: Tensor, W_GQ: Tensor, W_GK: Tensor, b_GQ: Tensor, b_GK: Tensor) -> Tensor:
    out = torch.zeros_like(pattern)
    for dst in range(len(x)):
        for src in range(len(x)):
            score = float(torch.dot(x[dst] @ W_GQ + b_GQ, x[src] @ W_GK + b_GK))
            out[dst, src] = min(max(score, 0.0), 1.0) * pattern[dst, src]
    return out


def body(
    pattern, x, W_GQ, W_GK, b_GQ, b_GK, *, bias="both", roles="right", scale="none", opens="clamp", after="product",
):  # fmt: skip
    at_q, at_k = {"both": (1, 1), "none": (0, 0), "query": (1, 0), "key": (0, 1)}.get(bias, (1, 1))
    q, k = x @ W_GQ + at_q * b_GQ, x @ W_GK + at_k * b_GK
    if bias == "exchanged":
        q, k = x @ W_GQ + b_GK, x @ W_GK + b_GQ
    q, k = {"swapped": (k, q), "queries": (q, q), "keys": (k, k)}.get(roles, (q, k))
    d_gate = W_GQ.shape[1]
    scores = q @ k.mT / {"none": 1.0, "d_gate": d_gate**0.5, "no root": d_gate, "d_model": x.shape[1] ** 0.5}[scale]
    if bias == "once":
        scores = (x @ W_GQ) @ (x @ W_GK).mT + (b_GQ * b_GK).sum()
    gate = {
        "clamp": lambda: scores.clamp(0, 1), "sigmoid": lambda: scores.sigmoid(), "relu": lambda: scores.relu(),
        "none": lambda: scores, "step": lambda: (scores > 0).double(), "half": lambda: (scores > 0.5).double(),
        "below 1": lambda: scores.clamp_max(1), "both sides": lambda: scores.clamp(-1, 1),
        "softmax": lambda: scores.softmax(-1), "tanh": lambda: scores.tanh(),
        "apart": lambda: q.clamp(0, 1) @ k.clamp(0, 1).mT, "hard": lambda: (scores / 6 + 0.5).clamp(0, 1),
        "abs": lambda: scores.abs().clamp(0, 1),
    }[opens]()  # fmt: skip
    gated, total = gate * pattern, (gate * pattern).sum(-1, keepdim=True)
    return {
        "product": lambda: gated, "gate": lambda: gate, "closed": lambda: (1 - gate) * pattern,
        "renormalised": lambda: gated / total, "guarded": lambda: torch.where(total > 0, gated / total, 0.0),
        "softmax": lambda: gated.softmax(-1), "matrix": lambda: gate @ pattern,
        "matrix, other order": lambda: pattern @ gate, "added": lambda: gate + pattern,
        "scores": lambda: (pattern.log() + gate).softmax(-1),
        "clamped product": lambda: (scores * pattern).clamp(0, 1), "output": lambda: gated @ x,
    }[after]()  # fmt: skip


def _of_gate(axes: str):
    """Weights and biases for which gates are shut, open and in between."""

    def draw(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
        shape = [size[axis] for axis in axes.split()]
        if len(shape) == 1:
            return 0.5 + 0.2 * normal(generator, *shape)
        return (size["d_model"] * math.sqrt(size["d_gate"])) ** -0.5 * normal(generator, *shape)

    return draw


def _pattern(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    pos = size["pos"]
    return normal(generator, pos, pos).masked_fill(torch.ones(pos, pos).triu(1).bool(), -math.inf).softmax(-1)


EXERCISE = Exercise(
    about="5.4 a gated pattern | easy | 10 minutes | 05-attention-superposition#the-gated-block-and-its-loophole",
    spec=spec, body=body, axes="d_gate < d_model, pos",
    inputs={
        "pattern": _pattern, "x": "pos d_model", "W_GQ": _of_gate("d_model d_gate"),
        "W_GK": _of_gate("d_model d_gate"), "b_GQ": _of_gate("d_gate"), "b_GK": _of_gate("d_gate"),
    },
    names=("destination", "source"),
    choices="""
    bias
        none | the gate's biases are left out | The gate's queries and keys have biases of their own.
        query | the bias of the gate's keys is left out | Gate keys are x W_GK + b_GK.
        key | the bias of the gate's queries is left out | Gate queries are x W_GQ + b_GQ.
        exchanged | the two biases are exchanged | b_GQ belongs to the queries, b_GK to the keys.
        once | the biases are added to the product | They are added to queries and keys before the two are multiplied.
    roles
        swapped | the gate is transposed | Rows of the pattern are destinations: the destination asks with W_GQ, the source answers with W_GK.
        queries | gate queries are compared with themselves | The source answers with W_GK and b_GK.
        keys | gate keys are compared with themselves | The destination asks with W_GQ and b_GQ.
    scale
        d_gate | gate scores are divided by sqrt(d_gate) | That is a habit of attention scores. Look at the formula of the gate once more.
        no root | gate scores are divided by d_gate | Nothing is divided here. Look at the formula of the gate once more.
        d_model | gate scores are divided by sqrt(d_model) | That is a habit of attention scores. Look at the formula of the gate once more.
    opens
        step | the gate is all or nothing | Between 0 and 1 a gate is half open: it is the score itself, cut off at both ends.
        half | the gate is all or nothing, above one half | Between 0 and 1 a gate is half open: it is the score itself, cut off at both ends.
        sigmoid | the gate is a sigmoid | A sigmoid is never quite 0. Which function is exactly 0 below 0, exactly 1 above 1, and straight between?
        hard | the gate is a hard sigmoid | It is the score itself, cut off at 0 and 1, neither shifted nor flattened.
        tanh | the gate is a tanh | Which function is exactly 0 below 0, exactly 1 above 1, and straight between?
        softmax | the gate is a softmax of its scores | Gates do not compete: each pair opens or shuts by itself.
        relu | the gate may exceed 1 | Such a gate can amplify. Gates end at 1.
        below 1 | the gate may be negative | A negative gate turns around what the head writes. Gates begin at 0.
        both sides | the gate is cut off at -1 and 1 | A negative gate turns around what the head writes. Gates begin at 0.
        none | the gate is not cut off at 0 and 1 | A negative gate turns around what the head writes. Gates lie between 0 and 1.
        apart | queries and keys are cut off before they are multiplied | The product is cut off, not its factors.
        abs | the gate has lost its sign before it is cut off | A negative score means shut.
    after
        renormalised | the rows are made to sum to 1 again | A gate that closes has to make the head write less. Renormalising, or gating before the softmax, gives the weight to other places instead.
        guarded | the rows are made to sum to 1 again, unless all of a row is shut | A gate that closes has to make the head write less, not only when all are shut. Nothing is divided here.
        softmax | there is a softmax after the gate | The pattern has its softmax behind it. A second one opens again what the gate has shut.
        scores | the gate is added to the scores, before the softmax | It multiplies the pattern, after the softmax.
        matrix | gate and pattern are multiplied as matrices | Each pair has its own gate: entry by entry, `*` and not `@`.
        matrix, other order | pattern and gate are multiplied as matrices | Each pair has its own gate: entry by entry, `*` and not `@`.
        added | the gate is added to the pattern | A gate multiplies.
        clamped product | the product is cut off, not the gate | First the gate, between 0 and 1; then it multiplies the pattern.
        gate | this is the gate without the pattern | The gate is right. It multiplies something.
        closed | the gate is 1 where it should be 0 | Gate 1 means open: the pattern is left as it is.
        output | the gated pattern is applied to the stream | Asked is the gated pattern itself.
    """,
)  # fmt: skip


def check_gated_pattern(answer) -> Result:
    """Exercise 5.4. `answer(pattern, x, W_GQ, W_GK, b_GQ, b_GK)` returns the gated pattern of one head.

    **Shapes**: `pattern [destination, source]`, `x [pos, d_model]`, `W_GQ` and `W_GK [d_model, d_gate]`, `b_GQ` and
    `b_GK [d_gate]`; the result has the shape of `pattern`.
    """
    return check(EXERCISE, answer)
