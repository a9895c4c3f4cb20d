"""Exercise 2.1, the attention pattern."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check
from circuitkit.exercises._shared import AXIS, MASK, SCALE, head_pattern


def spec(x: Tensor, W_Q: Tensor, W_K: Tensor) -> Tensor:
    pos, d_head = x.shape[0], W_Q.shape[1]
    pattern = torch.zeros(pos, pos, dtype=torch.float64)
    for dst in range(pos):
        weights = [
            torch.exp(torch.dot(x[dst] @ W_Q, x[src] @ W_K) / torch.tensor(float(d_head)).sqrt())
            for src in range(dst + 1)
        ]
        for src in range(dst + 1):
            pattern[dst, src] = weights[src] / sum(weights)
    return pattern


def body(x, W_Q, W_K, *, roles="right", scale="root", mask="before", axis=-1):
    q, k = x @ W_Q, x @ W_K
    q, k = {"swapped": (k, q), "queries": (q, q), "keys": (k, k), "plain": (x, x)}.get(roles, (q, k))
    pattern = head_pattern(q, k, x.shape[1], scale=scale, mask=mask, axis=axis)
    return pattern @ x if roles == "moved" else pattern


EXERCISE = Exercise(
    about="2.1 the attention pattern | easy | 10 minutes | 02-qk-and-ov-circuits#two-parts-that-do-not-touch",
    spec=spec, body=body, axes="pos, d_model, d_head",
    inputs={"x": "pos d_model", "W_Q": "d_model d_head", "W_K": "d_model d_head"},
    names=("destination", "source"),
    choices="""
    roles
        swapped | queries and keys are swapped | The destination asks with W_Q; the source answers with W_K.
        queries | the keys are made with W_Q | The destination asks with W_Q; what does the source answer with?
        keys | the queries are made with W_K | The source answers with W_K; what does the destination ask with?
        plain | the stream is compared with itself | Queries and keys are made from it first, with W_Q and W_K.
        moved | the pattern is applied to the stream | Asked is the pattern itself: who looks where.
    """
    + SCALE
    + MASK
    + AXIS,
)  # fmt: skip


def check_attention_pattern(answer) -> Result:
    """Exercise 2.1. `answer(x, W_Q, W_K)` returns the causal attention pattern of one head.

    **Shapes**: `x [pos, d_model]`, `W_Q` and `W_K [d_model, d_head]`; the result is `[destination, source]`.
    """
    return check(EXERCISE, answer)
