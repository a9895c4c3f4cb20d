"""Thirteen checks of the first edition, whose exercises gave way to predictions and investigations; they go on working.

They say right or wrong and what is wrong with the numbers; their mistakes have no names any more.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from circuitkit.exercises._check import Exercise, built, checks, normal

PATTERN = ("destination", "source")


def _earlier(
    about: str,
    spec: Callable[..., Tensor],
    inputs: dict[str, Any],
    axes: str = "",
    says: str = "",
    **more: Any,
) -> Callable:
    return checks(
        Exercise(about, spec, more.pop("body", spec), "", inputs, axes, smallest=3, **more), says
    )


def _seen(scores: Tensor, allowed: Tensor) -> Tensor:
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


def _past(n: int) -> Tensor:
    return torch.ones(n, n).tril().bool()


def _target(tokens: Tensor) -> Tensor:
    copies = (tokens[:, None] == tokens).tril(-1)
    return F.pad(copies[:, :-1], (1, 0)).double()


def _matching(pattern: Tensor, period: int, start: int) -> Tensor:
    return torch.stack(
        [pattern[:, dst, dst - period + 1] for dst in range(start + period, start + 2 * period)]
    ).mean(0)


def _worth(logits: Tensor, tokens: Tensor, period: int, start: int) -> Tensor:
    loss = F.cross_entropy(logits[:-1], tokens[1:], reduction="none")
    return (
        loss[start : start + period - 1].mean()
        - loss[start + period : start + 2 * period - 1].mean()
    )


def _labels(tokens: Tensor, n: int) -> Tensor:
    labels, waiting = [], False
    for token in tokens.tolist():
        waiting = waiting or token == 0
        due = waiting and 1 <= token <= n
        labels.append(token + n if due else -1)
        waiting = waiting and not due
    return torch.tensor(labels)


def _causal(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    pos = case["start"] + 2 * case["period"] if "start" in case else size["pos"]
    drawn = _seen(normal(generator, size.get("head", 1), pos, pos), _past(pos))
    return drawn if "start" in case else drawn[0]


def _twice(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    span = torch.randint(size["vocab"], (case["period"],), generator=generator)
    return torch.cat([torch.zeros(case["start"], dtype=torch.long), span, span])


def _rows(A_1: Tensor, W_1: Tensor) -> Tensor:
    return normal(torch.Generator().manual_seed(3), len(A_1), len(W_1))


def _virtual(answer: Any, A_1: Tensor, W_1: Tensor, A_2: Tensor, W_2: Tensor) -> Tensor:
    A, W = built(answer, A=tuple(A_1.shape), W=tuple(W_1.shape))
    return A @ _rows(A_1, W_1) @ W


_ROWS = {
    "period": lambda size, generator, case: size["period"] + 1,
    "start": lambda size, generator, case: 1 - size["step"] % 2,
}

check_bigram_loss = _earlier(
    "1.5 the loss of a bigram table | easy | 10 minutes | 01-residual-stream#a-model-with-no-layers-is-a-table",
    lambda tokens, W_E, W_U: F.cross_entropy(W_E[tokens[:-1]] @ W_U, tokens[1:], reduction="none"),
    {"tokens": "pos < vocab", "W_E": "vocab d_model", "W_U": "d_model vocab"},
    "pos, vocab, d_model",
    "`answer(tokens, W_E, W_U)` returns the loss of each prediction of a model without layers, in nats, `[pos - 1]`.",
)
check_attention_pattern = _earlier(
    "2.1 the attention pattern | easy | 10 minutes | 02-qk-and-ov-circuits#two-parts-that-do-not-touch",
    lambda x, W_Q, W_K: _seen(x @ W_Q @ (x @ W_K).mT / W_Q.shape[1] ** 0.5, _past(len(x))),
    {"x": "pos d_model", "W_Q": "d_model d_head", "W_K": "d_model d_head"},
    "pos, d_model, d_head",
    "`answer(x, W_Q, W_K)` returns the causal pattern `[destination, source]` of one head; `x [pos, d_model]`.",
    names=PATTERN,
)
check_head_as_one_matrix = _earlier(
    "2.2 one matrix for the whole head | medium | 15 minutes | 02-qk-and-ov-circuits#two-parts-that-do-not-touch",
    lambda A, W_V, W_O: torch.einsum("ds,io->dosi", A, W_V @ W_O).reshape(len(A) * len(W_V), -1),
    {
        "A": lambda size, generator, case: normal(generator, size["pos"], size["pos"]).exp().tril(),
        "W_V": "d_model d_head",
        "W_O": "d_head d_model",
    },
    "pos, d_model, d_head",
    "`answer(A, W_V, W_O)` returns the matrix $M$ with $M\\,x_{flat} = (A\\,x\\,W_V W_O)_{flat}$.",
)
check_virtual_head = _earlier(
    "2.6 a virtual head | easy | 10 minutes | 02-qk-and-ov-circuits#heads-in-a-row",
    lambda A_1, W_1, A_2, W_2: A_2 @ A_1 @ _rows(A_1, W_1) @ W_1 @ W_2,
    {"A_1": _causal, "W_1": "d_model d_model", "A_2": _causal, "W_2": "d_model d_model"},
    "pos, d_model",
    "`answer(A_1, W_1, A_2, W_2)` returns `A, W` of the head that head 2 reading head 1 amounts to.",
    observe=_virtual,
    parts=("A", "W"),
    body=lambda A_1, W_1, A_2, W_2: (A_2 @ A_1, W_1 @ W_2),
)
check_induction_target = _earlier(
    "3.1 where an induction head looks | easy | 10 minutes | 03-induction-heads#find-the-circuit-in-a-trained-model",
    _target,
    {
        "tokens": lambda size, generator, case: torch.randint(
            3, (6 + size["step"],), generator=generator
        )
    },
    "",
    "`answer(tokens)` is true, `[destination, source]`, where the source follows an earlier copy of the destination's token.",
    kind=torch.bool,
)
check_prefix_matching = _earlier(
    "3.2 the prefix-matching score | easy | 10 minutes | 03-induction-heads#find-the-circuit-in-a-trained-model",
    _matching,
    _ROWS | {"pattern": _causal},
    "head, period",
    "`answer(pattern, period, start)` returns each head's mean attention to the token after the earlier copy, `[head]`.",
)
check_second_pass = _earlier(
    "3.3 what the second pass is worth | medium | 15 minutes | 03-induction-heads#see-it-first",
    _worth,
    _ROWS
    | {
        "tokens": _twice,
        "logits": lambda size, generator, case: normal(
            generator, len(case["tokens"]), size["vocab"]
        ),
    },
    "vocab, period",
    "`answer(logits, tokens, period, start)` returns the mean loss of the first pass minus the second's, in nats a token.",
)
check_without_head = _earlier(
    "3.6 take a head out | medium | 10 minutes | 03-induction-heads#take-it-out-and-measure",
    lambda stream, results, head: stream - results[:, :, head] + results[:, :, head].mean(0),
    {"results": "row position head d_model", "stream": "row position d_model", "head": "< head"},
    "row, position, head, d_model",
    "`answer(stream, results, head)` returns the stream with one head replaced by its mean over rows, `[row, position, d_model]`.",
)
check_two_weights = _earlier(
    "4.1 the two weights of a neuron | easy | 5 minutes | 04-mlps-as-attention#one-neuron-is-one-head",
    lambda x: torch.stack([x.sigmoid(), (-x).sigmoid()], 1),
    {"x": lambda size, generator, case: 2 * normal(generator, 3 + size["step"])},
    "",
    "`answer(x)` returns a neuron-head's attention to itself and to the bias token, `[token, 2]`; `x [token]`.",
    names=("token", "place"),
)
check_two_places = _earlier(
    "4.2 a mask with two places | easy | 10 minutes | 04-mlps-as-attention#one-neuron-is-one-head",
    lambda scores: _seen(scores, torch.eye(len(scores)).bool() | (torch.arange(len(scores)) == 0)),
    {"scores": lambda size, generator, case: normal(generator, 3 + size["step"], 3 + size["step"])},
    "",
    "`answer(scores)` returns the pattern of a head that sees itself and position 0, `[destination, source]`.",
    names=PATTERN,
)
check_labels = _earlier(
    "5.1 what must follow | easy | 10 minutes | 05-attention-superposition#the-task",
    _labels,
    {
        "n": lambda size, generator, case: 2 + size["step"] // 4,
        "tokens": lambda size, generator, case: torch.randint(
            2 * case["n"] + 1, (6 + 2 * size["step"],), generator=generator
        ),
    },
    "",
    "`answer(tokens, n)` returns the token that must follow each position, and -1 where any may, `[pos]`.",
    kind=torch.long,
)
check_gated_pattern = _earlier(
    "5.4 a gated pattern | easy | 10 minutes | 05-attention-superposition#the-gated-block-and-its-loophole",
    lambda pattern, x, W_GQ, W_GK, b_GQ, b_GK: (
        pattern * ((x @ W_GQ + b_GQ) @ (x @ W_GK + b_GK).mT).clamp(0, 1)
    ),
    {
        "pattern": _causal,
        "x": "pos d_model",
        "W_GQ": "d_model d_gate",
        "W_GK": "d_model d_gate",
        "b_GQ": "d_gate",
        "b_GK": "d_gate",
    },
    "d_gate < d_model, pos",
    "`answer(pattern, x, W_GQ, W_GK, b_GQ, b_GK)` returns a head's pattern times its gate.",
    names=PATTERN,
)
check_gate_price = _earlier(
    "5.6 the price of open gates | easy | 10 minutes | 05-attention-superposition#the-gated-block-and-its-loophole",
    lambda gates, power: (gates**power).sum(0).pow(1 / power)[_past(gates.shape[1])].mean(),
    {"gates": lambda size, generator, case: normal(generator, size["head"], size["pos"], size["pos"]).clamp(0, 1),
     "power": lambda size, generator, case: (0.6, 0.5, 0.8)[size["step"] % 3]}, "head, pos",
    "`answer(gates, power)` returns the mean over causal pairs of $(\\sum_h g_h^p)^{1/p}$.")  # fmt: skip
for _name, _made in [(name, made) for name, made in globals().items() if name.startswith("check_")]:
    _made.__name__ = _made.__qualname__ = _name
