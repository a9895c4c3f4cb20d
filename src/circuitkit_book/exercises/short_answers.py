"""How the short answers inside the pages are judged: numbers, names and words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from circuitkit_book.exercises.checking import Result

UNKNOWN_NAME = "{} is not the answer. Compare the numbers again."
ALMOST = "Almost. Write it exactly as it is in the vocabulary: {!r}."


@dataclass(frozen=True)
class Table:
    """What a short answer is compared with."""

    kind: Literal["numbers", "name", "word"]
    title: str
    right: Any
    hints: Mapping[str, Any]
    """For numbers the wrong ones by their hint, otherwise the hint by the wrong name or word."""
    why: str = ""


def not_yet(table: Table) -> Result:
    """The result while there is no answer."""
    text = f"{table.title}: No answer yet."
    return Result(table.title, False, text, done=False, table=table)


def judge(
    title: str, answer: Any, right: list[float], hints: Mapping[str, Sequence[float]]
) -> Result:
    """Compare a number, or a list of numbers, with the right one and with known mistakes.

    Each hint is shown when the answer agrees with its list, as `agrees` compares them.
    """
    if answer is None or answer is ...:
        return not_yet(Table("numbers", title, right, hints))
    try:
        given = torch.as_tensor(answer, dtype=torch.float64).flatten()
    except (TypeError, ValueError, RuntimeError):
        return Result(title, False, f"{title}: not yet.\nGive a number or a list of numbers.")
    if len(given) != len(right):
        text = (
            f"{title}: not yet.\nThe answer has {len(right)} numbers, and yours has {len(given)}."
        )
        return Result(title, False, text, answer=answer)
    if agrees(given, right):
        return Result(title, True, f"{title}: right.", answer=answer)
    found = [hint for hint, wrong in hints.items() if agrees(given, wrong)]
    text = "\n".join([f"{title}: not yet.", *found])
    return Result(title, False, text, answer=answer, mistake=" ".join(found))


def agrees(given: torch.Tensor, expected: Sequence[float]) -> bool:
    """Whether two lists agree: whole numbers exactly, others within 1%, or within 0.005 near zero."""
    other = torch.tensor(expected, dtype=torch.float64)
    if len(given) != len(other):
        return False
    both_whole = (given == given.round()) & (other == other.round())
    is_close = torch.isclose(given, other, rtol=0.01, atol=0.005)
    return bool(torch.where(both_whole, given == other, is_close).all())


def judge_name(title: str, answer: Any, right: str, hints: dict[str, str]) -> Result:
    """Compare a name with the right one. A hint belongs to each name that a reader is likely to give."""
    if answer is None or answer is ...:
        return not_yet(Table("name", title, right, hints))
    if not isinstance(answer, str):
        text = f"{title}: not yet.\nGive a name in quotation marks, such as {min(hints)!r}."
        return Result(title, False, text, answer=answer)
    given = as_name(answer)
    if given == right:
        return Result(title, True, f"{title}: right.", answer=answer)
    hint = hints.get(given, UNKNOWN_NAME.format(given))
    return Result(title, False, f"{title}: not yet.\n{hint}", answer=answer, mistake=given)


def as_name(answer: str) -> str:
    """A name without the spaces that `ck.run` accepts: around it, and around each arrow."""
    return "->".join(piece.strip() for piece in answer.split("->"))


def judge_word(title: str, answer: Any, right: str, why: str, hints: dict[str, str]) -> Result:
    """Compare a token or the name of a head with the right one.

    `why` is shown with the right answer, and `hints` has a sentence for each known wrong one.
    """
    if answer is None or answer is ...:
        return not_yet(Table("word", title, right, hints, why))
    if not isinstance(answer, str):
        text = f"Give a text in quotation marks. You gave a value of type {type(answer).__name__}."
        return Result(title, False, f"{title}: not yet.\n{text}", answer=answer)
    if answer == right:
        return Result(title, True, f"{title}: right.\n{why}", answer=answer)
    hint = hints.get(answer.strip(), "")
    if answer.strip().lower() == right.strip().lower():
        hint = ALMOST.format(right)
    text = f"{title}: not yet.\n{hint}".rstrip()
    return Result(title, False, text, answer=answer, mistake=hint)
