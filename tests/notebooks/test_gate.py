"""The gate refuses every fault that is kept as a notebook under tests/fixtures/notebooks, and passes the sound one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.notebooks import gate as notebook_gate
from tools.notebooks.execute import notebooks

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/notebooks"
MOST_EXCUSED = 5  # cells of the whole book that may be excused from comparison, each with its reason

# Faults that the stored file shows by itself, with words of the message.
HOLLOW = {
    "never-executed": "never executed",
    "counts-out-of-order": "count is 7, not 3",
    "output-missing": "an output is expected and none is stored",
    "error-output": "the output is an error: ZeroDivisionError",
    "excused-without-reason": "excused from comparison (nbval-ignore-output)",
    "skipped-by-comment": "excused from comparison (NBVAL_SKIP)",
    "picture-without-alt": "image/png without alt text",
    "warning-in-output": "text on stderr",
}
# Faults that only a fresh run shows: nbval must fail.
STALE = ("stale-text", "stale-picture", "stale-attention")


def nbval(path: Path) -> subprocess.CompletedProcess:
    """Strict nbval on one notebook, as `make test` runs it; the file is copied out of tests/fixtures first."""
    sanitize = f"--nbval-sanitize-with={ROOT / 'tests/notebooks/sanitize.cfg'}"
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=60", sanitize, "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", str(path), *options, f"--rootdir={path.parent}", "-c", "/dev/null"],
        cwd=path.parent,
        capture_output=True,
        text=True,
    )


def test_every_fixture_is_used():
    assert {path.stem for path in FIXTURES.glob("*.ipynb")} == {"sound", *HOLLOW, *STALE}


def test_the_sound_notebook_passes_both(tmp_path):
    assert notebook_gate.faults(FIXTURES / "sound.ipynb") == []
    result = nbval(Path(shutil.copy(FIXTURES / "sound.ipynb", tmp_path)))
    assert result.returncode == 0, result.stdout
    assert "4 passed" in result.stdout


@pytest.mark.parametrize("name", HOLLOW)
def test_a_hollow_notebook_is_refused(name):
    found = notebook_gate.faults(FIXTURES / f"{name}.ipynb")
    assert any(HOLLOW[name] in fault for fault in found), found


@pytest.mark.parametrize("name", STALE)
def test_a_stale_notebook_is_refused(name, tmp_path):
    """These look sound as files: the comparison with a fresh run is what refuses them."""
    assert notebook_gate.faults(FIXTURES / f"{name}.ipynb") == []
    result = nbval(Path(shutil.copy(FIXTURES / f"{name}.ipynb", tmp_path)))
    assert result.returncode == 1, result.stdout
    assert "1 failed" in result.stdout


def test_a_large_notebook_is_refused(tmp_path):
    notebook = json.loads((FIXTURES / "sound.ipynb").read_text())
    notebook["cells"][0]["source"] = ["x" * notebook_gate.MOST_BYTES]
    (tmp_path / "large.ipynb").write_text(json.dumps(notebook))
    assert any("bytes; at most 1,500,000" in fault for fault in notebook_gate.faults(tmp_path / "large.ipynb"))


def test_a_long_cell_is_refused(tmp_path):
    notebook = json.loads((FIXTURES / "sound.ipynb").read_text())
    notebook["cells"][3]["source"] = ["x = 1\n"] * 16
    (tmp_path / "long.ipynb").write_text(json.dumps(notebook))
    assert any("16 lines of code; at most 15" in fault for fault in notebook_gate.faults(tmp_path / "long.ipynb"))


def test_a_reason_in_words_excuses(tmp_path):
    notebook = json.loads((FIXTURES / "excused-without-reason.ipynb").read_text())
    notebook["cells"][3]["metadata"]["circuitkit"] = {"reason": "the error text differs between Python versions"}
    (tmp_path / "excused.ipynb").write_text(json.dumps(notebook))
    assert notebook_gate.faults(tmp_path / "excused.ipynb") == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", False),
        ("x", True),
        ("x[0] @ y", True),
        ("x;", False),
        ("f(x)", False),
        ("print(x)", True),
        ("figures.show(fig, alt='A sentence about it')\ny = 2", True),
        ("%matplotlib inline\nx = 2", False),
        ("if colab:\n    %pip install x", False),
        ("def f():\n    print(1)", False),
    ],
)
def test_which_cells_are_expected_to_say_something(source, expected):
    assert notebook_gate.expects_output(source) is expected


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.name)
def test_the_book_has_no_hollow_notebook(path):
    assert notebook_gate.faults(path) == []


def test_few_cells_of_the_book_are_excused():
    import nbformat

    cells = [
        cell for path in notebooks() for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"
    ]
    assert sum(bool(notebook_gate.excused(cell)) for cell in cells) <= MOST_EXCUSED
