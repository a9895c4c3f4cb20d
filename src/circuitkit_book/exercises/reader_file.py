"""The reader's own file: accepted answers are written to `my_circuitkit.py`, next to her notebooks."""

import re
import textwrap
from collections.abc import Callable
from inspect import getsource, isfunction
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from circuitkit_book.exercises.answers import attempt
from circuitkit_book.exercises.exercise import Exercise, close

FILE = "my_circuitkit.py"
TOP = "# My functions that the checks of the book accepted. Each part runs by itself.\n"
SECTION = re.compile(r"^# --- (\d+\.\d+) (\w+)\n", re.M)


def sections() -> dict[str, tuple[str, str]]:
    """Return the number and the code of each function in the reader's file, by name."""
    path = Path(FILE)
    if not path.is_file():
        return {}
    pieces = SECTION.split(path.read_text("utf-8"))[1:]
    numbers, names, codes = pieces[::3], pieces[1::3], pieces[2::3]
    return {name: (number, code) for number, name, code in zip(numbers, names, codes, strict=True)}


def begin() -> None:
    """Create the reader's file if there is none."""
    if not Path(FILE).is_file():
        Path(FILE).write_text(TOP, "utf-8")


def function(code: str, name: str) -> Callable[..., Any]:
    """Return a function that a part of the file defines."""
    space: dict[str, Any] = {}
    exec(compile(code, FILE, "exec"), space)
    return space[name]


def keep(exercise: Exercise, answer: Any) -> str:
    """Write an accepted answer to the reader's file if there is one, and return a line about it.

    An answer that does not run by itself is not written.
    """
    if not Path(FILE).is_file():
        return ""
    name = exercise.name
    try:
        code = source(answer, set())
        if answer.__name__ != name:
            code += f"\n{name} = {answer.__name__}"
        require_alone(exercise, function(code, name))
    except Exception as error:  # the reader can correct whatever it is
        advice = (
            "Use only imports, numbers and functions of your notebook, and run this cell again."
        )
        return f"\nIt is not written to {FILE}: {error}. {advice}"
    parts = sections() | {name: (exercise.number, code)}
    in_order = sorted(parts.items(), key=lambda item: [*map(int, item[1][0].split("."))])
    text = "".join(
        f"\n# --- {number} {part}\n{code.strip()}\n" for part, (number, code) in in_order
    )
    Path(FILE).write_text(TOP + text, "utf-8")
    return f"\nIt is written to {FILE} as `{name}`."


def require_alone(exercise: Exercise, answer: Callable[..., Any]) -> None:
    """Raise an error unless a function without its notebook still gives the right result."""
    case = exercise.all_cases()[0]
    trial, right = attempt(exercise, answer, case), attempt(exercise, exercise.solution, case)
    if trial.error is not None:
        raise trial.error
    if not close(trial.outcome, right.outcome):
        raise ValueError("without its notebook it gives other numbers")


def source(answer: Any, seen: set[str]) -> str:
    """Return the code of a function, with the imports, numbers and functions of its notebook that it uses."""
    parts = []
    for word in sorted(names_in(answer.__code__) & set(answer.__globals__) - seen):
        seen = seen | {word}
        value = answer.__globals__[word]
        value = getattr(value, "answer", value)  # an accepted answer stands for its function
        if value is not answer:
            parts.append(definition(word, value, answer, seen))
    return "\n".join([*filter(None, parts), textwrap.dedent(getsource(answer)).strip()])


def definition(word: str, value: Any, answer: Any, seen: set[str]) -> str:
    """Return code that defines what a function calls `word`; empty if there is none."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {word}"
    if isinstance(value, (bool, int, float, str)):
        return f"{word} = {value!r}"
    if isfunction(value) and value.__globals__ is answer.__globals__:
        code = source(value, seen)
        return code if value.__name__ == word else f"{code}\n{word} = {value.__name__}"
    if hasattr(value, "__name__"):
        return f"from {value.__module__} import {value.__name__} as {word}"
    return ""


def names_in(code: CodeType) -> set[str]:
    """Return all names that code uses, with those of the functions inside."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names
