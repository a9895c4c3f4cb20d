"""How notebooks are stored and compared, and the readers' copies of the exercises."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from circuitkit_book import exercises
from tools.notebooks import stubs, warm
from tools.notebooks.execute import execute, notebooks
from tools.notebooks.setup_cell import source as setup_source

ROOT = stubs.ROOT
SOLVED = sorted(ROOT.glob("book/[1-9]-*/exercises.ipynb"))


def code(path: Path) -> list:
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def copy_of(solved: Path) -> Path:
    return ROOT / "exercises" / f"{solved.parent.name}.ipynb"


def name(path: Path) -> str:
    return path.relative_to(ROOT / "book").as_posix()


@pytest.mark.parametrize("path", notebooks(), ids=name)
def test_the_first_code_cell_installs_this_version_on_colab(path):
    assert code(path)[0].source == setup_source(), "run python -m tools setup-cell"


@pytest.mark.parametrize("path", notebooks(), ids=name)
def test_no_stored_output_is_larger_than_200_kilobytes(path):
    outputs = [output for cell in code(path) for output in cell.outputs]
    assert [size for size in (len(str(output)) for output in outputs) if size > 200_000] == []


def test_a_notebook_is_executed_in_an_empty_folder_and_stored_without_traces(tmp_path):
    source = "import os\nprint(os.listdir('.'), os.environ['OMP_NUM_THREADS'], flush=True)\n"
    source += "from tqdm import tqdm\nlist(tqdm(range(2)))  # ruff refuses tqdm.auto, whose bar would be stored\n"
    source += "print('same stream')"
    cell = v4.new_code_cell(source, execution_count=41, metadata={"collapsed": True, "tags": ["a"]})
    other = {"kernelspec": {"name": "mine", "display_name": "Mine"}}
    path = tmp_path / "page.ipynb"
    nbformat.write(v4.new_notebook(cells=[cell], metadata=other), path)
    stored = nbformat.reads(execute(path), as_version=4)
    assert stored.metadata.kernelspec.name == "python3"
    (cell,) = stored.cells
    assert (cell.id, cell.execution_count, cell.metadata) == ("cell-00", 1, {"tags": ["a"]})
    assert [output.get("text") for output in cell.outputs] == ["[] 1\nsame stream\n"]


def stored(source: str, *outputs):
    return v4.new_code_cell(source, outputs=list(outputs), execution_count=1)


def value(text: str, **data):
    return v4.new_output("execute_result", {"text/plain": text} | data, execution_count=1)


DRAW = """\
from circuitkit import figures
figures.attention(
    ["a", "b"], [[[1, 0], [{}, {}]]], ["L0H0"], alt="The second token attends to the first"
)
"""
RANDOM = """\
import random, numpy, torch
numbers = [random.random(), numpy.random.rand(), torch.rand(1).item()]
_ = open("{}.txt", "w").write("\\n".join(map(str, numbers)))
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[Path, str]:
    """The folder of two notebooks that nbval ran as `make test` runs the book, and what it printed."""
    folder = tmp_path_factory.mktemp("pages")
    exec(
        DRAW.format(0.9, 0.1).replace("figures.attention", "view = figures.attention"), space := {}
    )
    drawn = value(repr(space["view"]), **{"text/html": space["view"]._repr_html_()})
    first = [
        stored(RANDOM.format("first")),
        stored("import sys\n'transformer_lens' in sys.modules", value(str(warm.AVAILABLE))),
        stored("print(2 + 2)", v4.new_output("stream", text="5\n")),
        stored(DRAW.format(0.9, 0.1), drawn),
        stored(DRAW.format(0.5, 0.5), drawn),
    ]
    nbformat.write(v4.new_notebook(cells=first), folder / "first.ipynb")
    second = v4.new_notebook(cells=[stored(RANDOM.format("second"))])
    nbformat.write(second, folder / "second.ipynb")
    command = [sys.executable, "-m", "pytest", ".", "--nbval", "--nbval-current-env", "-q"]
    command += [f"--nbval-sanitize-with={ROOT}/tests/book/sanitize.cfg", "-p", "no:cacheprovider"]
    command += ["-p", "tools.notebooks.kernels", "-c", os.devnull, f"--rootdir={folder}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return folder, done.stdout


def test_nbval_refuses_stale_text_and_a_stale_figure_and_uses_warm_kernels(compared):
    assert "2 failed, 4 passed" in compared[1]
    assert "first.ipynb::Cell 2" in compared[1]
    assert "first.ipynb::Cell 4" in compared[1]


def test_two_warm_kernels_do_not_share_random_numbers(compared):
    first, second = ((compared[0] / f"{name}.txt").read_text() for name in ("first", "second"))
    assert not set(first.split()) & set(second.split())


def test_the_readers_copies_follow_the_solved_notebooks():
    texts = stubs.written()
    stale = [path.name for path, text in texts.items() if path.read_text("utf-8") != text]
    assert stale == [], "run python -m tools stubs"
    assert set((ROOT / "exercises").glob("*.ipynb")) == set(texts)


@pytest.mark.parametrize("path", SOLVED, ids=name)
def test_no_returned_value_of_a_solution_is_in_the_copy(path):
    copy = "\n".join(cell.source for cell in code(copy_of(path)))
    solutions = [cell for cell in code(path) if "solution" in cell.metadata.get("tags", [])]
    nodes = [node for cell in solutions for node in ast.walk(ast.parse(cell.source))]
    returned = [ast.unparse(node) for node in nodes if isinstance(node, ast.Return)]
    assert returned
    assert [line for line in returned if line in copy] == []


@pytest.mark.parametrize("path", SOLVED, ids=name)
def test_the_untouched_copy_runs_and_every_check_says_not_done(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space, results = {}, []
    for cell in code(copy_of(path))[1:]:
        body = ast.parse(cell.source).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "cell", "exec"), space)
        if last is not None:
            results.append(eval(compile(ast.Expression(last.value), "cell", "eval"), space))
    results = [result for result in results if isinstance(result, exercises.Result)]
    checks = [result for result in results if result.exercise.startswith("Ex ")]
    assert len(checks) == len(exercises.catalogue(int(path.parent.name[0])))
    assert not any(result.passed or result.done for result in results)
