"""All exercises of the book, in reading order."""

from circuitkit._contract import Count, public
from circuitkit.exercises import _circuits, _conversion, _induction, _residual, _superposition
from circuitkit.exercises._exercise import Exercise

_CHAPTERS = (_residual, _circuits, _induction, _conversion, _superposition)


@public
def catalogue(chapter: Count | None = None) -> tuple[Exercise, ...]:
    """The exercises of one chapter (1 to 5), or of all, with their minutes, difficulty and known mistakes.

    >>> [exercise.title for exercise in catalogue(2)][:2]
    ['the attention pattern', 'one matrix for the whole head']
    """
    found = [exercise for module in _CHAPTERS for exercise in module.EXERCISES]
    chosen = tuple(e for e in found if chapter is None or e.number.startswith(f"{chapter}."))
    if not chosen:
        have = sorted({e.number.split(".")[0] for e in found})
        raise ValueError(f"no exercises in chapter {chapter!r}; there are exercises in chapters {', '.join(have)}")
    return chosen
