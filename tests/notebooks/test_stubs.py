"""The reader's copies: made from the solved notebooks, without solutions, and harmless until they are filled in."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from circuitkit import exercises
from tools.notebooks import stubs as exercise_stubs

ROOT = Path(exercise_stubs.ROOT)
SOLVED = sorted((ROOT / "book/exercises").glob("*.ipynb"))


def read(path):
    return nbformat.read(path, as_version=4)


def code(notebook, tag=None):
    return [
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and (tag is None or tag in cell.metadata.get("tags", []))
    ]


def values(sources):
    """Run cells one after the other, without a kernel, and return the value that each ends in."""
    space, found = {}, []
    for source in sources:
        if "google.colab" in source:
            continue
        body = ast.parse(source).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "cell", "exec"), space)
        if last is not None:
            found.append(eval(compile(ast.Expression(last.value), "cell", "eval"), space))
    return [value for value in found if isinstance(value, exercises.Result)]


def test_making_them_again_changes_nothing():
    stale = [
        path.name
        for path, text in exercise_stubs.written().items()
        if path.read_text("utf-8") != text
    ]
    assert stale == [], "run tools/notebooks/stubs.py"
    assert {path.name for path in (ROOT / "exercises").glob("*.ipynb")} == {
        path.name for path in SOLVED
    }


def test_every_chapter_has_a_solved_notebook_of_its_name():
    assert [path.name for path in SOLVED] == sorted(
        path.name for path in (ROOT / "book").glob("0*.ipynb")
    )


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.name)
def test_the_copy_runs_untouched_and_says_not_done_yet(path, tmp_path, monkeypatch):
    chapter = int(path.name[:2])
    monkeypatch.chdir(tmp_path)
    results = values(code(read(ROOT / "exercises" / path.name)))
    assert len([r for r in results if r.exercise.startswith("Exercise ")]) == len(
        exercises.catalogue(chapter)
    )
    assert not any(result.passed or result.done for result in results)
    assert (tmp_path / "my_circuitkit.py").is_file()


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.name)
def test_the_solutions_pass_in_order_and_are_all_there(path):
    solved = read(path)
    outputs = [
        "".join(output.get("data", {}).get("text/plain", ""))
        for cell in solved.cells
        for output in cell.get("outputs", [])
    ]
    right = [text for text in outputs if text.startswith("Exercise ")]
    numbers = [exercise.number for exercise in exercises.catalogue(int(path.name[:2]))]
    assert [text.split(",")[0] for text in right] == [f"Exercise {number}" for number in numbers]
    assert all(": right, on " in text for text in right)


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.name)
def test_no_line_of_a_solution_is_in_the_copy(path):
    copy = "\n".join(code(read(ROOT / "exercises" / path.name)))
    for source in code(read(path), "solution"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Return):
                assert ast.unparse(node) not in copy


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.name)
def test_each_exercise_shows_difficulty_minutes_and_a_hint(path):
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for exercise in exercises.catalogue(int(path.name[:2])):
        part = text.split(f"## {exercise.number} ", 1)[1].split("\n## ", 1)[0]
        assert f"*{exercise.difficulty} · {exercise.minutes} minutes*" in part
        assert "<summary>Hint</summary>" in part
    parts = re.findall(r"^## \d\.\d .*\n\n(.*)\n", text, re.M)
    assert len(parts) > len(
        exercises.catalogue(int(path.name[:2]))
    )  # predictions and capstones, too
    for line in parts:
        assert re.fullmatch(r"\*(easy|medium|hard) · [^*]+\* \(an estimate\), to \w.*[^.]", line), (
            line
        )


def test_a_solution_loses_its_body_and_keeps_its_signature_and_docstring():
    source = 'import torch\n\ndef f(x, *, y=1):\n    """What f does."""\n    z = x + y\n    return z\n\na, b = 1, 2\nc = f(a)'
    assert exercise_stubs.emptied(source) == (
        'import torch\n\ndef f(x, *, y=1):\n    """What f does."""\n    raise NotImplementedError\n'
        "a, b = None, None  # your turn\nc = None  # your turn"
    )


def test_a_solution_cell_with_a_loop_is_refused():
    with pytest.raises(ValueError, match="holds a For on line 1"):
        exercise_stubs.emptied("for i in range(3):\n    print(i)")


def test_a_stale_copy_is_noticed(tmp_path):
    for name in ("_config.yml", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "book/exercises").mkdir(parents=True)
    path = tmp_path / "book/exercises" / SOLVED[0].name
    path.write_text(SOLVED[0].read_text())
    assert exercise_stubs.main([], tmp_path) == 0
    assert exercise_stubs.main(["--check"], tmp_path) == 0
    notebook = read(path)
    notebook.cells[0].source += "\n\nOne sentence more."
    path.write_text(nbformat.writes(notebook) + "\n")
    assert exercise_stubs.main(["--check"], tmp_path) == 1
    path.unlink()
    assert exercise_stubs.main(["--check"], tmp_path) == 1
