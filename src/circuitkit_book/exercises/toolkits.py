"""The reader's own functions, with the book's where she has none yet."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circuitkit_book.exercises.answers import accepted
from circuitkit_book.exercises.checking import wrapped
from circuitkit_book.exercises.contents import catalogue
from circuitkit_book.exercises.reader_file import FILE, begin, function, sections


@dataclass(frozen=True)
class Toolkit:
    """Functions by name, such as `tools.copying_score`: the reader's own, and the book's for the rest."""

    functions: dict[str, Callable[..., Any]]
    own: tuple[str, ...]
    """Names of those that the reader wrote."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        functions = self.__dict__["functions"]
        if name not in functions:
            raise AttributeError(f"There is no tool {name!r}. There are {', '.join(functions)}.")
        return functions[name]

    def __repr__(self) -> str:
        if not Path(FILE).is_file():
            text = f"There is no {FILE} in this folder, so you use the book's own functions."
            return wrapped(f"{text} `exercises.toolkit(keep=True)` begins the file.")
        names = ", ".join(self.own) or "none yet"
        text = f"{FILE}: {len(self.own)} of {len(self.functions)} functions are yours ({names})"
        return wrapped(f"{text}; the others are the book's.")


def toolkit(keep: bool = False) -> Toolkit:
    """Return the reader's functions from `my_circuitkit.py` in this folder, and the book's for those that are missing.

    Parameters
    ----------
    keep : create the file, so that answers are written to it from now on when a check accepts them

    Examples
    --------
    >>> toolkit().copying_score.__name__
    'copying_score'

    Source: this book.
    """
    if keep:
        begin()
    written = sections()
    functions, own = {}, []
    for exercise in catalogue():
        answer = exercise.solution
        if exercise.name in written:
            answer = function(written[exercise.name][1], exercise.name)
            own.append(exercise.name)
        functions[exercise.name] = accepted(exercise, answer)
    return Toolkit(functions, tuple(own))
