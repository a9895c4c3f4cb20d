"""The solutions printed in the book are right, by the checks as they are now and not as they were when the page ran."""

import ast
import functools
from pathlib import Path

import nbformat
import pytest

from circuitkit import exercises

SOLVED = sorted((Path(__file__).resolve().parents[2] / "book/exercises").glob("*.ipynb"))


@functools.cache
def parts(path):
    """The imports of a page, its solution cells, and its calls of checks, as syntax trees."""
    imports, solutions, checks = [], [], []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code" or "google.colab" in cell.source:
            continue
        body = ast.parse(cell.source).body
        imports += [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
        solutions += body if "solution" in cell.metadata.get("tags", []) else []
        values = [node.value for node in body if isinstance(node, ast.Assign)]
        checks += [value for value in values if ast.unparse(value).startswith("exercises.check_")]
    return imports, solutions, checks


CASES = [(path, ast.unparse(check)) for path in SOLVED for check in parts(path)[2]]


@pytest.mark.parametrize(
    ("path", "check"), CASES, ids=[check[10 : check.index("(")] for _, check in CASES]
)
def test_the_solution_is_right(path, check):
    imports, solutions, _ = parts(path)
    space: dict = {}
    exec(compile(ast.Module(imports + solutions, []), path.name, "exec"), space)
    result = eval(check, space)
    assert result, result.message


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.stem)
def test_every_check_is_called_once(path):
    called = [
        check.split("(")[0].removeprefix("exercises.") for where, check in CASES if where == path
    ]
    numbers = [getattr(exercises, name).__doc__.split()[1].rstrip(".") for name in called]
    assert numbers == [exercise.number for exercise in exercises.catalogue(int(path.name[:2]))]
