"""Exercise 2.6, a virtual head."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, built, check, normal


def spec(A_1: Tensor, W_1: Tensor, A_2: Tensor, W_2: Tensor) -> Tensor:
    x = normal(torch.Generator().manual_seed(3), A_1.shape[0], W_1.shape[0])
    pos, out = A_1.shape[0], torch.zeros(A_1.shape[0], W_1.shape[0], dtype=torch.float64)
    for dst in range(pos):
        for middle in range(pos):
            for src in range(pos):
                out[dst] += A_2[dst, middle] * A_1[middle, src] * ((x[src] @ W_1) @ W_2)
    return out


def observe(answer, A_1: Tensor, W_1: Tensor, A_2: Tensor, W_2: Tensor) -> Tensor:
    A, W = built(answer, A=tuple(A_1.shape), W=tuple(W_1.shape))
    return A @ normal(torch.Generator().manual_seed(3), A_1.shape[0], W_1.shape[0]) @ W


def _joined(one: Tensor, two: Tensor, how: str) -> Tensor:
    return {
        "two one": lambda: two @ one, "one two": lambda: one @ two, "entries": lambda: two * one,
        "added": lambda: two + one, "first": lambda: one, "second": lambda: two,
        "one transposed": lambda: two @ one.mT, "two transposed": lambda: two.mT @ one,
        "whole transposed": lambda: (two @ one).mT, "two one transposed": lambda: one @ two.mT,
        "one transposed two": lambda: one.mT @ two, "softmax": lambda: (two @ one).softmax(-1),
        "mean": lambda: (two + one) / 2, "direct": lambda: two @ one + one + two,
        "one two transposed": lambda: (one @ two).mT,
    }[how]()  # fmt: skip


def body(A_1, W_1, A_2, W_2, *, patterns="two one", matrices="one two", both=""):
    if both == "added":
        patterns = matrices = "added"
    return _joined(A_1, A_2, patterns), _joined(W_1, W_2, matrices)


EXERCISE = Exercise(
    about="2.6 a virtual head | easy | 10 minutes | 02-qk-and-ov-circuits#heads-in-a-row-three-repairs-to-the-notes",
    spec=spec, body=body, axes="pos, d_model", smallest=3,
    inputs={
        "A_1": lambda size, generator, case: _pattern(size["pos"], generator), "W_1": "d_model d_model",
        "A_2": lambda size, generator, case: _pattern(size["pos"], generator), "W_2": "d_model d_model",
    },
    observe=observe, parts=("A", "W"),
    names=("destination", "dimension"),
    choices="""
    both = added | the two heads are added, not composed | Heads side by side add up; a virtual head is one head reading what another wrote.
    patterns
        one two | the patterns are in the order of the layers | The later head moves what the earlier one has already moved, and patterns act from the left.
        entries | the patterns are multiplied entry by entry | The information goes through a position in the middle; sum over all of them.
        added | the patterns are added | The information goes through a position in the middle: first one pattern, then the other.
        mean | the patterns are averaged | The information goes through a position in the middle: first one pattern, then the other.
        first | the later head's pattern is left out | The later head moves what the earlier one has already moved.
        second | the earlier head's pattern is left out | What the later head moves has been moved before.
        one transposed | the earlier pattern is transposed | Rows are destinations in both: the earlier one's destination is the later one's source.
        two transposed | the later pattern is transposed | Rows are destinations in both: the earlier one's destination is the later one's source.
        whole transposed | the product of the patterns is transposed | Rows of the result are the later head's destinations.
        softmax | there is another softmax over the product | A product of two patterns has rows that sum to one already.
        direct | the heads' own patterns are added to the product | Asked is the path through both heads alone.
    matrices
        two one | the OV matrices are in the order of the columns | Rows meet the earlier matrix first: x W_1 W_2. The framework paper, which writes columns, has the other order.
        entries | the OV matrices are multiplied entry by entry | `*` multiplies entries; one matrix after the other is `@`.
        added | the OV matrices are added | Heads side by side add up; in a row they multiply.
        first | the later head's OV circuit is left out | What the earlier head wrote is read and written once more.
        second | the earlier head's OV circuit is left out | What the later head reads is what the earlier one wrote.
        two transposed | W_2 is transposed, and comes first | Rows multiply from the left: x W_1 W_2, both as they are.
        two one transposed | W_2 is transposed | Rows multiply from the left: x W_1 W_2, both as they are.
        one transposed two | W_1 is transposed | Rows multiply from the left: x W_1 W_2, both as they are.
        one two transposed | the product of the OV circuits is transposed | Rows multiply from the left: x W_1 W_2, as it is.
        direct | the heads' own OV circuits are added to the product | Asked is the path through both heads alone.
    """,
)  # fmt: skip


def _pattern(pos: int, generator: torch.Generator) -> Tensor:
    return normal(generator, pos, pos).masked_fill(torch.ones(pos, pos).triu(1).bool(), -torch.inf).softmax(-1)


def check_virtual_head(answer) -> Result:
    """Exercise 2.6. `answer(A_1, W_1, A_2, W_2)` returns `A, W` of the head that head 2 reading head 1 amounts to.

    **Shapes**: patterns `[pos, pos]`, OV circuits `[d_model, d_model]`; `A` and `W` have the same shapes.
    """
    return check(EXERCISE, answer)
