"""Exercise 4.2, a mask with two places."""

import math

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check, normal
from circuitkit.exercises._shared import AXIS, attend


def spec(scores: Tensor) -> Tensor:
    n = len(scores)
    pattern = torch.zeros(n, n, dtype=torch.float64)
    for dst in range(n):
        places = {dst, 0}
        total = sum(math.exp(float(scores[dst, src])) for src in places)
        for src in places:
            pattern[dst, src] = math.exp(float(scores[dst, src])) / total
    return pattern


def body(scores, *, places="itself and first", mask="before", axis=-1, scale=1.0, turned=False):
    n = len(scores)
    eye = torch.eye(n, dtype=torch.bool)
    first, last = torch.arange(n) == 0, torch.arange(n) == n - 1
    shown = {
        "itself and first": eye | first, "causal": torch.ones(n, n).tril().bool(), "itself": eye,
        "first": eye & False | first, "itself and last": eye | last, "row and column": eye | first | first[:, None],
        "itself and before": eye | eye.roll(-1, 1) & torch.ones(n, n).tril(-1).bool(),
        "first closed": (eye | first) & ~(eye & first), "everything": eye | True,
        "second": eye | (torch.arange(n) == 1),
    }[places]  # fmt: skip
    scores = scores.mT if turned else scores
    if axis == "times mask":
        return scores * shown
    return attend(scores * scale, ~shown, mask=mask, axis=axis)


EXERCISE = Exercise(
    about="4.2 a mask with two places | easy | 10 minutes | 04-mlps-as-attention#one-neuron-is-one-head",
    spec=spec, body=body,
    inputs={"scores": lambda size, generator, case: normal(generator, 3 + size["step"], 3 + size["step"])},
    names=("destination", "source"),
    choices="""
    places
        causal | the mask is the causal one | A neuron knows nothing of the other tokens. Here too much of the past is visible.
        itself | the bias token is hidden | With one place to look at there is nothing to choose, and the pattern is the identity whatever the scores.
        first | a position does not see itself | Two places: the bias token and the token itself.
        itself and last | the bias token is looked for at the last position | The paper puts it there, and a causal mask would hide it. In this book it comes first.
        second | the bias token is looked for at position 1 | Positions are counted from 0, and the bias token comes first.
        row and column | the bias token looks at everybody | The rows of the tokens are right. Row 0 has two places as well, and the two are the same.
        itself and before | a token looks at the one before it | The second place is the bias token, at position 0, for every token.
        first closed | the bias token does not see itself | Row 0 then has no place left: its two places are the same one.
        everything | nothing is hidden | Every position may look at itself and at position 0, and at nothing else.
    mask
        after | the mask comes after the softmax | The hidden places took their share before they were removed, so the rows no longer sum to 1.
        zero | masked scores are 0 instead of minus infinity | exp(0) = 1: a hidden place still gets attention. What must vanish after exp?
        weak | masked scores are -1 instead of minus infinity | A score of -1 is not very small: what must vanish after exp?
        small | masked scores are a small negative number | A hidden place still gets a little. Only minus infinity vanishes after exp.
        shown | the two places are hidden and the others shown | The pattern is 0 exactly where it should not be. `masked_fill` fills where its mask is true.
        past | the mask is transposed: the first row is open instead of the first column | Rows are destinations, columns are sources. Everybody looks at the bias token; it looks at nobody.
    axis = times mask | the scores are multiplied by the mask, and there is no softmax | What turns scores into shares?
    scale = -1.0 | the scores have the opposite sign | Higher scores get more attention.
    turned = True | the scores are transposed | Destinations are in rows already.
    """
    + AXIS,
)  # fmt: skip


def check_two_places(answer) -> Result:
    """Exercise 4.2. `answer(scores)` returns the pattern of a neuron-head: itself and the bias token, nothing else.

    **Shapes**: `scores [pos, pos]`, destinations in rows, the bias token at position 0; the result has the same shape.
    """
    return check(EXERCISE, answer)
