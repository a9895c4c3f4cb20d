"""Exercise 3.1, where an induction head looks."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check


def spec(tokens: Tensor) -> Tensor:
    words = tokens.tolist()
    out = torch.zeros(len(words), len(words), dtype=torch.float64)
    for dst in range(len(words)):
        for earlier in range(dst):
            if words[earlier] == words[dst]:
                out[dst, earlier + 1] = 1
    return out


def _moved(marks: Tensor, by: int, axis: int, wrap: bool) -> Tensor:
    """The marks moved to later places (`by` positive) or earlier ones, with nothing coming in unless they wrap around."""
    out = marks.roll(by, axis)
    if by and not wrap:
        out.narrow(axis, 0 if by > 0 else marks.shape[axis] + by, abs(by)).zero_()
    return out


def body(tokens, *, cut="earlier", shift=1, axis=1, order="cut, shift", keep="all", after="", turned=False):
    cuts = {"earlier": -1, "itself": 0, "itself, rolled": 0, "all": len(tokens)}
    marks = (tokens[:, None] == tokens[None, :]).double()
    if cut == "later":
        marks = marks.triu(1)
    elif order == "cut, shift":
        marks = marks.tril(cuts[cut])
    marks = _moved(marks, -1 if shift == "-1, rolled" else shift, axis, "rolled" in f"{order} {cut} {shift}")
    if order != "cut, shift":
        marks = marks.tril(-1 if order == "rolled, cut" else 0)
    if keep in ("latest", "first"):
        seen = marks.flip(1) if keep == "latest" else marks
        seen = seen * (seen.cumsum(1) == 1)
        marks = seen.flip(1) if keep == "latest" else seen
    marks = {
        "no destination": lambda: marks.tril(-1), "shares": lambda: marks / marks.sum(1, keepdim=True).clamp_min(1),
        "not": lambda: 1 - marks, "any": lambda: marks.amax(1), "where": lambda: marks.argmax(1).double(),
    }.get(after, lambda: marks)()  # fmt: skip
    return marks.mT if turned else marks


EXERCISE = Exercise(
    about="3.1 where an induction head looks | easy | 10 minutes | 03-induction-heads#find-the-circuit-in-a-trained-model",
    spec=spec, body=body,
    inputs={"tokens": lambda size, generator, case: torch.randint(3, (6 + size["step"],), generator=generator)},
    names=("destination", "source"), kind=torch.bool,
    choices="""
    shift
        0 | the earlier copy itself is marked | There the head would find the token that it has already. What does it want to know about the last time?
        -1 | the token before the earlier copy is marked | The shift goes the wrong way: one wants to know what came after the earlier copy.
        -1, rolled | the token before the earlier copy is marked, and the shift wraps around | The shift goes the wrong way: one wants to know what came after the earlier copy. And roll carries what leaves on one side in on the other.
        2 | the marks are moved by two | One wants to know what came directly after the earlier copy.
    cut
        itself | a token counts as its own earlier copy | So the place after the destination is marked, which lies in the future. Where does the past begin?
        itself, rolled | a token counts as its own earlier copy, and the shift wraps around | So the place after the destination is marked, which lies in the future, and roll carries the last column to the front. Where does the past begin?
        all | later copies are marked, too | A causal head cannot look ahead, and at this time the later copy has not been read.
        later | later copies are marked instead of earlier ones | Rows are destinations: which triangle is the past of a row?
    order
        rolled, cut | the shift comes before the cut, and wraps around | Two things: roll carries the last column to the front, and after the shift the destination itself may be marked. Cut first: which pairs hold an earlier copy? Then shift.
        rolled, cut at the diagonal | the shift wraps around | In column 0 there is nothing to mark: what comes after an earlier copy cannot be the first token. Roll carries the last column there.
    axis = 0 | the shift moves destinations instead of sources | Rows are destinations. The head stays where it is; the place it looks at is one further on.
    turned = True | destinations and sources are exchanged | Rows are destinations, columns are sources, so nothing above the diagonal can be marked.
    keep
        latest | only the latest copy is marked | A token may have occurred more than once before. Each time, something came after it.
        first | only the first copy is marked | A token may have occurred more than once before. Each time, something came after it.
    after
        no destination | the destination itself is left out (a cut after the shift does that) | Take `a a`: the second `a` comes after an earlier `a`. It is a source as good as any, and not in the future.
        shares | the marks of a row share one unit | That is what a perfect head would do. Here the question is only where: yes or no.
        not | what should be marked is not, and the rest is | True where an induction head looks.
        any | it says only whether there is such a place | Return every pair, [destination, source].
        where | it gives the number of one place | Return every pair, [destination, source], true or false.
    """,
)  # fmt: skip


def check_induction_target(answer) -> Result:
    """Exercise 3.1. `answer(tokens)` marks the places where an induction head looks.

    **Shapes**: `tokens [pos]` to `[destination, source]`, true (or 1) where the source comes directly after an earlier
    occurrence of the destination's token, false (or 0) elsewhere.
    """
    return check(EXERCISE, answer)
