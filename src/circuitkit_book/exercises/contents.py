"""What the files of this package hold: an exercise is a file with an `EXERCISE` and its check."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from circuitkit_book.exercises.chapters import CHAPTERS
from circuitkit_book.exercises.exercise import Exercise

if TYPE_CHECKING:
    from circuitkit_book.exercises.checking import Result


@cache
def modules() -> dict[str, ModuleType]:
    """Every file of this package, by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    return {name: import_module(f"circuitkit_book.exercises.{name}") for name in names}


def checks() -> "dict[str, Callable[[Any], Result]]":
    """The functions `check_...` of all files, by name."""
    return {
        name: function
        for module in modules().values()
        for name, function in vars(module).items()
        if name.startswith("check_") and function.__module__ == module.__name__
    }


def catalogue(chapter: int | None = None) -> tuple[Exercise, ...]:
    """Return the exercises of a chapter that have a check, or those of all chapters, in the order of the book.

    Raises
    ------
    ValueError : there is no such chapter

    Examples
    --------
    >>> [exercise.title for exercise in catalogue(2)][:2]
    ['how much goes to the first position', 'a head that copies, by hand']

    Source: this book.
    """
    if chapter is not None and chapter not in range(1, len(CHAPTERS) + 1):
        raise ValueError(
            f"Chapter {chapter!r} has no exercises. Chapters 1 to {len(CHAPTERS)} have some."
        )
    found = [vars(module).get("EXERCISE") for module in modules().values()]
    exercises = sorted((one for one in found if one is not None), key=place)
    return tuple(one for one in exercises if chapter is None or place(one)[0] == chapter)


def place(exercise: Exercise) -> tuple[int, int]:
    """The chapter of an exercise and its place there."""
    chapter, position = exercise.number.split(".")
    return int(chapter), int(position)
