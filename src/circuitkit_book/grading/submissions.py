"""What a student handed in: the files of one person, and the functions in them."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from circuitkit_book.exercises.reader_file import FILE, SECTION

NOTEBOOK_COMMAND = re.compile(r"^(\s*)[%!].*$", re.M)
KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class Submission:
    """The files of one student."""

    student: str
    files: tuple[Path, ...]
    """Python files first, then notebooks."""
    mystery: str = ""
    """The line in `mystery.txt`, if there is one."""


def submissions(folder: Path) -> list[Submission]:
    """Return what is in a folder: one student for each folder in it, and for each `.py` or `.ipynb` file.

    Raises
    ------
    ValueError : there is no such folder, it has no submission, or two entries have the same student's name
    """
    if not folder.is_dir():
        raise ValueError(f"There is no folder {str(folder)!r}. Give the folder with the files.")
    found: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        is_answer = entry.suffix in (".py", ".ipynb") and entry.is_file()
        if entry.name.startswith((".", "__")) or not (entry.is_dir() or is_answer):
            continue
        student = entry.name if entry.is_dir() else entry.stem
        if student in found:
            raise ValueError(
                f"{found[student].name} and {entry.name} belong to the same student, {student!r}. "
                "Put both into one folder with this name."
            )
        found[student] = entry
    if not found:
        raise ValueError(
            f"{str(folder)!r} has no answers. It needs one folder for each student with a "
            f"{FILE} or a notebook in it, or one file for each student."
        )
    return [submission(student, entry) for student, entry in found.items()]


def submission(student: str, entry: Path) -> Submission:
    """Return the files of one student, from her folder or from her one file."""
    if entry.is_file():
        return Submission(student, (entry,))
    answer = entry / "mystery.txt"
    line = read_any(answer).strip() if answer.is_file() else ""
    files = [entry / FILE] if (entry / FILE).is_file() else sorted(entry.glob("*.py"))
    return Submission(student, (*files, *sorted(entry.glob("*.ipynb"))), line)


def read_any(path: Path) -> str:
    """Read a text that an editor has saved as UTF-8 or UTF-16, with a mark at its beginning or without."""
    content = path.read_bytes()
    is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return content.decode("utf-16" if is_wide else "utf-8-sig", errors="replace")


Getter = Callable[[], Any]


def functions(path: Path, names: tuple[str, ...]) -> dict[str, Getter]:
    """Return, for each exercise that a file answers, a function that runs its code and returns the answer.

    The code of `my_circuitkit.py` is run section by section, as the book does. Another Python file is run as a whole, and
    of a notebook its imports, definitions and assignments.

    Raises
    ------
    Exception : whatever the code of a file without sections raises
    """
    if path.suffix == ".ipynb":
        space = run_notebook(path)
        return {name: given(space[name]) for name in names if callable(space.get(name))}
    text = read_any(path)
    pieces = SECTION.split(text)[1:]
    if pieces:
        codes = dict(zip(pieces[1::3], pieces[2::3], strict=True))
        return {name: of_section(codes[name], name) for name in names if name in codes}
    space = run(text, str(path.name))
    return {name: given(space[name]) for name in names if callable(space.get(name))}


def given(value: Any) -> Getter:
    """Return a function that returns a value."""
    return lambda: value


def of_section(code: str, name: str) -> Getter:
    """Return a function that runs a section of the file and returns the function that it defines."""
    return lambda: run(code, FILE)[name]


def run(code: str, name: str) -> dict[str, Any]:
    """Run code and return what it defines."""
    space: dict[str, Any] = {"__name__": "answers"}
    exec(compile(code, name, "exec"), space)
    return space


def run_notebook(path: Path) -> dict[str, Any]:
    """Run the imports, definitions and assignments of a notebook, and return what they define.

    Checks, tables and figures are left out. A line that fails is left out, too: its cell may be an answer that is not
    finished, and an answer that needs it then says what is missing.
    """
    space: dict[str, Any] = {"__name__": "answers"}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        try:
            lines = ast.parse(NOTEBOOK_COMMAND.sub(r"\1pass", cell.source))
        except SyntaxError:
            continue
        for line in lines.body:
            if not isinstance(line, KEPT) or uses_exercises(line):
                continue
            code = compile(ast.Module([line], []), path.name, "exec")
            try:
                exec(code, space)
            except Exception:
                continue
    return space


def uses_exercises(line: ast.stmt) -> bool:
    """Return whether an assignment calls a check, a prediction or another helper of the exercises."""
    if not isinstance(line, (ast.Assign, ast.AnnAssign)):
        return False
    return any(isinstance(part, ast.Name) and part.id == "exercises" for part in ast.walk(line))
