"""Each library function that a notebook calls has a fault to be planted, or a reason; the faults fit the code.

The faults themselves are planted by `make notebook-mutants`.
"""

import ast
import importlib
import inspect
import sys
from pathlib import Path

import mutants
import nbformat
import notebook_mutants
import pytest
from notebook_run import Calls, Departure, departure, public_name

LISTED = notebook_mutants.read()
CHAPTERS = sorted(path.stem for path in (mutants.ROOT / "book").glob("*.ipynb"))


def called(source: str) -> set[str]:
    """Public names of the functions and classes of the library that a notebook's cells mention, by their syntax."""
    tree, known, found = ast.parse(source), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {name.asname or name.name: name.name for name in node.names if name.name.startswith("circuitkit")}
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("circuitkit"):
            known |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        value = resolved(node, known)
        if inspect.isfunction(inspect.unwrap(value) if callable(value) else value) or inspect.isclass(value):
            module, name = inspect.unwrap(value).__module__.split(".")[1], inspect.unwrap(value).__qualname__
            found.add(public_name(module, name))
    return found


def resolved(node: ast.AST, known: dict[str, str]) -> object:
    """The object that a dotted name stands for, or None."""
    if isinstance(node, ast.Name) and node.id in known:
        module, _, name = known[node.id].rpartition(".")
        try:
            return importlib.import_module(known[node.id])
        except ModuleNotFoundError:
            return getattr(importlib.import_module(module), name)
    if isinstance(node, ast.Attribute):
        return getattr(resolved(node.value, known), node.attr, None)
    return None


def source(name: str) -> str:
    cells = nbformat.read(mutants.ROOT / f"book/{name}.ipynb", as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "code" and "%pip" not in cell.source)


def test_every_notebook_beside_the_exercises_is_listed():
    assert sorted(LISTED) == CHAPTERS


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_function_that_a_notebook_calls_has_a_fault_or_a_reason(name):
    explains, aside = LISTED[name]
    missing = sorted(called(source(name)) - explains.keys() - aside.keys() - exceptions())
    assert not missing, (
        f"book/{name}.ipynb calls {missing}: name a fault for each in tests/notebooks/explained.toml under which the "
        "notebook fails (scripts/notebook_mutants.py tries it), or a reason why none is planted"
    )


def exceptions() -> set[str]:
    """Warnings and containers, which do nothing that could be wrong."""
    return {"conversion.OmegaWarning", "induction.Repeated", "conversion.OmegaMLP"}


@pytest.mark.parametrize("name", CHAPTERS)
def test_nothing_is_listed_that_a_notebook_does_not_use(name):
    words = {
        node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        for node in ast.walk(ast.parse(source(name)))
    }
    own = notebook_mutants.own(name)
    listed = {function.split(".")[-1] for function in own if not function.endswith("__call__")}
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source(name)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert listed <= words | imported


def test_the_faults_are_known_and_fit():
    known = notebook_mutants.faults()
    assert notebook_mutants.wrong_names(LISTED, known) == []
    assert mutants.misfits([known[fault] for explains, _ in LISTED.values() for fault in explains.values()]) == []


def test_reasons_are_in_words():
    assert all(len(reason.split()) > 3 for _, aside in LISTED.values() for reason in aside.values())


def notebook(tmp_path: Path, *sources: str, outputs=()) -> Path:
    cells = [nbformat.v4.new_code_cell(text) for text in sources]
    for cell, output in zip(cells, outputs, strict=False):
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
    path = tmp_path / "page.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def run(path: Path) -> Departure | None:
    return departure(path, {"ck-[0-9a-f]{4}": "ck-ID"})


def test_a_notebook_that_agrees_departs_nowhere(tmp_path):
    assert run(notebook(tmp_path, "x = 2", "print(x)", outputs=["", "2\n"])) is None


def test_an_error_is_told_with_its_cell(tmp_path):
    assert run(notebook(tmp_path, "x = 2", "assert x == 3, 'no'")) == (1, "AssertionError", "no")


def test_another_output_is_told(tmp_path):
    found = run(notebook(tmp_path, "print('loss', 2)", outputs=["loss 3\n"]))
    assert found == (0, "output", "stdout: 'loss 3' is now 'loss 2'")


def test_what_the_comparison_replaces_is_replaced_here(tmp_path):
    assert run(notebook(tmp_path, "print('ck-00ff')", outputs=["ck-1234\n"])) is None


def test_a_value_at_the_end_of_a_cell_is_compared(tmp_path):
    path = notebook(tmp_path, "6 * 7")
    assert run(path).what == "output"
    stored = nbformat.read(path, as_version=4)
    stored.cells[0].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "42"})]
    nbformat.write(stored, path)
    assert run(path) is None


def test_calls_from_cells_are_noted_and_others_are_not(tmp_path):
    package = tmp_path / "tiny_library"
    (package / "tools").mkdir(parents=True)
    (package / "tools/_a.py").write_text("def outer():\n    return inner()\n\ndef inner():\n    return 1\n")
    (package / "_heads").mkdir()
    (package / "_heads/_b.py").write_text("class Heads:\n    @property\n    def OV(self):\n        return 2\n")
    cells = (
        "import sys",
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "from tiny_library.tools import _a\nvalue = _a.outer()",
    )
    with Calls(package) as calls:
        assert run(notebook(tmp_path, *cells, "from tiny_library._heads._b import Heads\nvalue = Heads().OV")) is None
    sys.path.remove(str(tmp_path))
    assert calls.names == {"tools.outer", "Heads.OV"}
