"""Exercise 3.2, the prefix-matching score."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check, normal


def spec(pattern: Tensor, period: int, start: int) -> Tensor:
    out = torch.zeros(pattern.shape[0], dtype=torch.float64)
    for head in range(pattern.shape[0]):
        for dst in range(start + period, start + 2 * period):
            source = dst - period + 1  # the copy of dst stands at dst - period
            out[head] += pattern[head, dst, source] / period
    return out


def body(
    pattern, period, start, *, back=-1, begin="second", end="all", opening=True, reduce="mean", turned=False,
    axes="last",
):  # fmt: skip
    pattern = pattern.mT if turned else pattern
    s, pos = start if opening else 0, pattern.shape[1]
    away = {"fixed": start - 1, "fixed less": -start - 1}[back] if isinstance(back, str) else back
    steps = period + away
    if axes == "first two":
        return pattern.diagonal(-steps).mean(1)
    first = {"second": s + period, "first": max(steps, 0), "after one": s + period + 1, "one early": s + period - 1}[begin]
    last = {"all": pos if opening else 2 * period, "one less": s + 2 * period - 1}[end]
    dst = torch.arange(first, last)
    found = pattern[:, dst, dst - steps]
    return {
        "mean": lambda: found.mean(1), "sum": lambda: found.sum(1), "positions": lambda: found.sum(1) / pos,
        "period less": lambda: found.sum(1) / (period - 1), "max": lambda: found.amax(1),
        "heads": lambda: found.mean(0), "one": lambda: found.mean(), "each": lambda: found,
        "min": lambda: found.amin(1), "hits": lambda: (pattern[:, dst].argmax(-1) == dst - steps).double().mean(1),
        "block": lambda: pattern[:, dst][:, :, dst - steps].mean((1, 2)), "median": lambda: found.median(1).values,
    }[reduce]()  # fmt: skip


def _draw_pattern(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    pos = case["start"] + 2 * case["period"]
    return (
        normal(generator, size["head"], pos, pos)
        .masked_fill(torch.ones(pos, pos).triu(1).bool(), -torch.inf)
        .softmax(-1)
    )


EXERCISE = Exercise(
    about="3.2 the prefix-matching score | easy | 10 minutes | 03-induction-heads#find-the-circuit-in-a-trained-model",
    spec=spec, body=body, axes="head, period", smallest=3,
    inputs={
        "period": lambda size, generator, case: size["period"] + 1,
        "start": lambda size, generator, case: 1 - size["step"] % 2, "pattern": _draw_pattern,
    },
    names=("head",),
    choices="""
    back
        0 | the score looks at the earlier copy | That is the duplicate-token score. An induction head looks one further: how far back is that?
        1 | the score looks at the token before the earlier copy | One further on is fewer steps back. From destination 10, with period 4: where is its copy, and what is next?
        -2 | the score looks two behind the earlier copy | The token after the copy stands one further on, not two.
        fixed | the opening token is counted in the distance | It moves destination and copy alike: how far apart are they?
        fixed less | the opening token is taken from the distance | It moves destination and copy alike: how far apart are they?
    begin
        first | the whole diagonal is averaged | It is the right diagonal. But its first entries belong to destinations of the first pass, which have no earlier copy.
        after one | the first destination of the second pass is left out | The second pass has `period` destinations, and the first of them has an earlier copy as well.
        one early | one destination of the first pass is left in | It is the right diagonal, but how long is it? The second pass has `period` destinations and no more.
    end = one less | the last destination of the second pass is left out | The second pass has `period` destinations, the last of the row included.
    opening = False | the opening token is forgotten | With an opening token everything stands one place later. At which position does the second pass begin?
    reduce
        sum | the attention is summed, not averaged | A perfect head should score 1, however long the span.
        positions | the sum is divided by all positions | In the first pass there is nothing to match; those positions take no part. A perfect head should score 1.
        period less | the sum is divided by period - 1 | The second pass has `period` destinations.
        max | the largest attention is taken, not the mean | A head may match once by luck.
        heads | the mean runs over heads instead of destinations | One score for each head: which axis is to be averaged away?
        one | the scores of all heads are averaged | One score for each head: which axis is to be averaged away?
        each | the attention of each destination is returned | One score for each head: what is to be averaged?
        hits | it counts where the head looks most | Asked is how much attention, not how often it is the largest.
        block | every destination is paired with every source | Two index tensors in one pair of brackets pick entries one by one.
    turned = True | destinations and sources are exchanged | All your scores are zero: you read above the diagonal, in the future. The pattern is [head, destination, source].
    axes = first two | the diagonal is taken over heads and destinations | torch takes diagonals of the first two axes unless told otherwise; yours are the last two.
    """,
)  # fmt: skip


def check_prefix_matching(answer) -> Result:
    """Exercise 3.2. `answer(pattern, period, start)` returns each head's prefix-matching score on a repeated span.

    **Shapes**: `pattern [head, destination, source]`. A span of `period` tokens stands at positions `start` to
    `start + period - 1` and again directly after; `start` is 1 after an opening token, otherwise 0, and nothing follows
    the second pass. The result is `[head]`: the mean, over the destinations of the second pass, of the attention to
    the token after the earlier copy.
    """
    return check(EXERCISE, answer)
