"""The checks of the exercises: each `check_...` tries an answer and says which mistake it makes.

An answer is a function. A check compares what it returns with the right result on a few generated
cases. If it differs, the check looks for a known mistake that gives the same result, and shows the
hint for it. `predict` notes a prediction, `picture` draws numbers, `mystery` and `try_claim` belong to
the last exercise of each chapter, and `toolkit` returns the functions that a reader has written.

Every function `check_...` of a file of this folder is public here; `chapters.py` has the order of the exercises.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from circuitkit_book.exercises.checking import Result as Result
from circuitkit_book.exercises.contents import catalogue as catalogue
from circuitkit_book.exercises.contents import checks
from circuitkit_book.exercises.exercise import Exercise as Exercise
from circuitkit_book.exercises.mysteries import mystery as mystery
from circuitkit_book.exercises.pictures import picture as picture
from circuitkit_book.exercises.pictures import predict as predict
from circuitkit_book.exercises.toolkits import toolkit as toolkit
from circuitkit_book.exercises.verdicts import try_claim as try_claim

globals().update(checks())

__all__ = [
    "Exercise",
    "Result",
    "catalogue",
    "mystery",
    "picture",
    "predict",
    "toolkit",
    "try_claim",
]
__all__ += [*checks()]


def __getattr__(name: str) -> Callable[[Any], Result]:
    """Say what there is instead of a name that is missing; editors learn from it what a check is."""
    near = get_close_matches(name, globals(), n=1) if not name.startswith("_") else []
    hint = f" Did you mean {near[0]}?" if near else ""
    raise AttributeError(f"circuitkit_book.exercises has no {name}.{hint}")
