"""What the reader keeps: accepted answers in `my_circuitkit.py`, beside her notebooks. The file is hers to read and edit."""

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from inspect import getsource, isfunction
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from circuitkit_book.exercises.answers import Run, accepted, close
from circuitkit_book.exercises.exercise import Exercise, catalogue

FILE = "my_circuitkit.py"
_HEAD = "# Functions of mine that the book's checks accepted. Each part stands for itself.\n"
_SECTION = re.compile(r"^# --- \d\.\d (\w+)\n", re.M)


@dataclass(frozen=True)
class Toolkit:
    """The reader's functions by name, such as `tools.copying_score`; where there is none, the book's own stands in."""

    functions: dict[str, Callable[..., Any]]
    own: tuple[str, ...]
    """Names of those that the reader wrote."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.__dict__["functions"]:
            raise AttributeError(
                f"there is no tool {name!r}; there are {', '.join(self.functions)}"
            )
        return self.functions[name]

    def __repr__(self) -> str:
        if not Path(FILE).is_file():
            return f"There is no {FILE} in this folder, so the book's own functions stand in for yours. It begins with `exercises.toolkit(keep=True)`."
        return f"{FILE}: {len(self.own)} of {len(self.functions)} functions are yours ({', '.join(self.own) or 'none yet'}); the book's stand in for the rest."


def name_of(exercise: Exercise) -> str:
    """The name of its function, from the name of its file; empty for an exercise that is no file."""
    package, _, module = exercise.body.__module__.rpartition(".")
    return module if package == "circuitkit_book.exercises" else ""


def _read() -> dict[str, str]:
    """The parts of the file by the name of their function."""
    path = Path(FILE)
    pieces = _SECTION.split(path.read_text("utf-8")) if path.is_file() else [""]
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(
        *(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType))
    )


def _source(answer: Any, seen: set[str]) -> str:
    """A function with the imports, numbers and functions of its notebook that it uses."""
    parts, here = [], answer.__globals__
    for word in sorted(_names(answer.__code__) & set(here) - seen):
        value = here[word]
        value, seen = getattr(value, "answer", value), seen | {word}
        if isinstance(value, ModuleType):
            parts.append(
                f"import {value.__name__}" + ("" if value.__name__ == word else f" as {word}")
            )
        elif isinstance(value, (bool, int, float, str)):
            parts.append(f"{word} = {value!r}")
        elif isfunction(value) and value is not answer and value.__globals__ is here:
            parts.append(
                _source(value, seen)
                + ("" if value.__name__ == word else f"\n{word} = {value.__name__}")
            )
        elif (
            hasattr(value, "__name__")
            and not isfunction(value)
            or getattr(value, "__globals__", here) is not here
        ):
            parts.append(f"from {value.__module__} import {value.__name__} as {word}")
    return "\n".join([*parts, textwrap.dedent(getsource(answer)).strip()])


def keep(exercise: Exercise, answer: Any) -> str:
    """Write an accepted answer into the file if there is one, and say so; what does not run by itself is not kept."""
    name = name_of(exercise)
    if not name or not Path(FILE).is_file():
        return ""
    try:
        text = _source(answer, set())
        text += "" if answer.__name__ == name else f"\n{name} = {answer.__name__}"
        space: dict[str, Any] = {}
        exec(compile(text, FILE, "exec"), space)
        case = next(exercise.cases())
        run, right = Run(exercise, space[name], case), exercise.spec(**case)
        if run.error or run.outcome is None or not close(run.outcome, right.double()):
            raise run.error or ValueError("by itself it gives other numbers")
    except Exception as error:  # whatever it is, the reader may correct it
        return f"\nNot kept in {FILE}: {error}. Use nothing of the notebook but imports and functions, and run this cell again."
    parts = sorted((_read() | {name: text.strip() + "\n\n\n"}).items())
    numbers = {name_of(e): e.number for e in catalogue()}
    Path(FILE).write_text(
        _HEAD
        + "".join(
            f"\n# --- {numbers[n]} {n}\n{part.strip()}\n" for n, part in parts if n in numbers
        ),
        "utf-8",
    )
    return f"\nKept in {FILE} as `{name}`."


def toolkit(keep: bool = False) -> Any:
    """The reader's own functions, from `my_circuitkit.py` in this folder; with `keep`, answers gather there from now on.

    >>> toolkit().copying_score.__name__
    'accepted'
    """
    if keep and not Path(FILE).is_file():
        Path(FILE).write_text(_HEAD, "utf-8")
    written, found, own = _read(), {}, []
    for exercise in catalogue():
        name, answer = name_of(exercise), exercise.body
        if name in written:
            space: dict[str, Any] = {}
            exec(compile(written[name], FILE, "exec"), space)
            answer, own = space[name], [*own, name]
        found[name] = accepted(exercise, answer)
    return Toolkit(found, tuple(own))
