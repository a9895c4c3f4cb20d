"""Each library function that a notebook calls has a fault to be planted, or a reason; the faults fit the code.

The faults themselves are planted by `make notebook-mutants`.
"""

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import nbformat
import pytest

from tools.check import mutants
from tools.notebooks import faults as notebook_mutants
from tools.notebooks import walk as notebook_walk
from tools.notebooks.run import Calls, Departure, Page, public_name

LISTED = notebook_mutants.read()
CHAPTERS = sorted(path.stem for path in (mutants.ROOT / "book").glob("*.ipynb"))


def called(source: str) -> set[str]:
    """Public names of the functions and classes of the library that a notebook's cells mention, by their syntax."""
    tree, known, found = ast.parse(source), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {
                name.asname or name.name: name.name
                for name in node.names
                if name.name.startswith("circuitkit")
            }
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("circuitkit"):
            known |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        value = resolved(node, known)
        if inspect.isfunction(
            inspect.unwrap(value) if callable(value) else value
        ) or inspect.isclass(value):
            module, name = (
                inspect.unwrap(value).__module__.split(".")[1],
                inspect.unwrap(value).__qualname__,
            )
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
    return "\n".join(
        cell.source for cell in cells if cell.cell_type == "code" and "%pip" not in cell.source
    )


def test_every_notebook_beside_the_exercises_is_listed():
    assert sorted(LISTED) == CHAPTERS


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_function_that_a_notebook_calls_has_a_fault_or_a_reason(name):
    explains, aside = LISTED[name]
    missing = sorted(called(source(name)) - explains.keys() - aside.keys() - exceptions())
    assert not missing, (
        f"book/{name}.ipynb calls {missing}: name a fault for each in tests/notebooks/explained.toml under which the "
        "notebook fails (tools/notebooks/faults.py tries it), or a reason why none is planted"
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
    assert (
        mutants.misfits(
            [known[fault] for explains, _ in LISTED.values() for fault in explains.values()]
        )
        == []
    )


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
    return Page(path, {"ck-[0-9a-f]{4}": "ck-ID"}).run_from(0)


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
    (package / "tools/_a.py").write_text(
        "def outer():\n    return inner()\n\ndef inner():\n    return 1\n"
    )
    (package / "_heads").mkdir()
    (package / "_heads/_b.py").write_text(
        "class Heads:\n    @property\n    def OV(self):\n        return 2\n"
    )
    cells = (
        "import sys",
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "from tiny_library.tools import _a\nvalue = _a.outer()",
    )
    with Calls(package) as calls:
        assert (
            run(
                notebook(
                    tmp_path, *cells, "from tiny_library._heads._b import Heads\nvalue = Heads().OV"
                )
            )
            is None
        )
    sys.path.remove(str(tmp_path))
    assert calls.names == {"tools.outer", "Heads.OV"}
    assert calls.ran >= {("tools/_a.py", "inner"), ("_heads/_b.py", "Heads.OV")}


SOURCE = """
import functools

SCALE = 2

class Head:
    @property
    def width(self):
        return SCALE + 1

@functools.cache
def doubled(x):
    def inner():
        return 2 * x
    return inner()
"""


def test_a_fault_is_planted_in_functions_that_are_loaded(tmp_path):
    module = types.ModuleType("tiny")
    exec(compile(SOURCE, "tiny.py", "exec"), module.__dict__)
    faulty = compile(
        SOURCE.replace("2 * x", "3 * x").replace("SCALE + 1", "SCALE - 1"), "tiny.py", "exec"
    )
    assert (module.doubled(5), module.Head().width) == (10, 3)
    for name in ("doubled", "Head.width"):
        notebook_walk.plain_function(module, name).__code__ = notebook_walk.code_of(faulty, name)
    assert (module.doubled(7), module.Head().width) == (21, 1)
    with pytest.raises(LookupError, match="Head.height is not in tiny.py"):
        notebook_walk.code_of(faulty, "Head.height")


def test_a_fault_lies_inside_a_function_or_outside_of_any():
    mutant = notebook_mutants.faults()["heads: missing 1/sqrt(d_head)"]
    assert notebook_mutants.enclosing(mutant) == "Heads.scores_of"
    outside = notebook_mutants.faults()["figures: weights rounded to one digit"]
    assert notebook_mutants.enclosing(outside) is None


def test_a_walk_tries_a_fault_where_its_function_first_runs(tmp_path):
    """In a process of its own, since a fork of the test run would carry the test run along."""
    library = mutants.ROOT / "src/circuitkit"
    cells = (
        "import circuitkit as ck",
        "print(len(ck.list_models()))",
        "print(ck.list_models()[0])",
        "print(1)",
    )
    path = notebook(tmp_path, *cells, outputs=["", "4\n", "zero-layer\n", "1\n"])
    faults = []
    for key, old, new in (
        ("one lost", 'list(manifest()["models"])', 'list(manifest()["models"])[1:]'),
        ("turned round", 'list(manifest()["models"])', 'list(manifest()["models"])[::-1]'),
        ("never runs", '("unigram", "bigram", "trigram")', '("unigram",)'),
    ):
        source = (library / "models/_load.py").read_text()
        assert source.count(old) == 1
        function = "baselines" if key == "never runs" else "list_models"
        fault = {
            "key": key,
            "file": "models/_load.py",
            "function": function,
            "source": source.replace(old, new),
        }
        faults.append(fault)
    asked = json.dumps([str(path), str(library), faults])
    code = f"import sys; sys.path[:0] = {sys.path!r}; from tools.notebooks import run, walk; walk.serve(run.SANITIZE, 60)"
    environment = os.environ | {"EMPTY_FOLDER": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=asked,
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    answer = json.loads(run.stdout)
    assert answer["control"] is None
    assert answer["called"] == ["models.list_models"]
    assert answer["found"]["one lost"][:2] == [1, "output"]
    assert answer["found"]["turned round"][:2] == [2, "output"]
    assert answer["found"]["never runs"] is None
