"""What the head of a chapter promises: minutes that agree with a count, and seconds that are printed beside the promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from tools.notebooks import promises as chapter_times

ROOT = Path(__file__).resolve().parents[2]
LINE = "**Time**: about {} minutes to read, {} seconds to run on two processor cores."
MOST_OFF = 0.25


def notebook(path: Path, *cells: str) -> Path:
    """A stored notebook; a cell that starts with `#!` is code."""
    made = [
        v4.new_code_cell(cell[2:], execution_count=1)
        if cell.startswith("#!")
        else v4.new_markdown_cell(cell)
        for cell in cells
    ]
    path.write_text(nbformat.writes(v4.new_notebook(cells=made)))
    return path


@pytest.mark.parametrize("path", chapter_times.notebooks(), ids=lambda path: path.name)
def test_the_promised_minutes_agree_with_the_count(path):
    said = chapter_times.promise(path)
    assert said, f"{path.name} has no **Time** line"
    counted = chapter_times.reading_minutes(path)
    assert abs(said.minutes - counted) <= MOST_OFF * counted, (
        f"{path.name} counts {counted:.0f} minutes; write that"
    )


@pytest.mark.parametrize("path", chapter_times.notebooks(), ids=lambda path: path.name)
def test_the_time_stands_at_the_head(path):
    """Before the first section that teaches, where a reader decides whether to begin."""
    text = "\n".join(
        cell.source
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "markdown"
    )
    before, found, _ = text.partition("**Time**")
    assert found
    assert set(re.findall(r"(?m)^## (.+)$", before)) <= {"See it first", "Objectives"}


def test_what_is_counted(tmp_path):
    words = "word " * 130
    cells = [
        "# " + words,
        "#!" + "x = 1\n" * 15,
        "$$a = b$$",
        "<details><summary>Answer</summary>" + words + "</details>",
    ]
    cells += ["## Exercises\n\n" + words, "#!" + "x = 1\n" * 15, "## After\n\n" + words]
    counted = chapter_times.reading_minutes(notebook(tmp_path / "a.ipynb", *cells))
    after = 1 / 130  # the heading's own word
    assert counted == pytest.approx(2 + after + 15 * 4 / 60 + 20 / 60)


def test_a_figure_counts_once(tmp_path):
    path = notebook(tmp_path / "a.ipynb", "#!show()")
    made = nbformat.read(path, as_version=4)
    made.cells[0].outputs = [
        v4.new_output("display_data", {"image/png": "aGk=", "text/html": "<figure>two</figure>"})
    ]
    path.write_text(nbformat.writes(made))
    assert chapter_times.reading_minutes(path) == pytest.approx((4 + 45) / 60)


@pytest.mark.parametrize(
    "said",
    [
        "**Time**: about an hour to read, a minute to run.",
        LINE.format(5, 5) + "\n\n" + LINE.format(6, 6),
    ],
)
def test_a_promise_in_other_words_is_refused(tmp_path, said):
    with pytest.raises(
        ValueError, match=r"a.ipynb says \*\*Time\*\* . times, of which . can be read"
    ):
        chapter_times.promise(notebook(tmp_path / "a.ipynb", said))


def run_timed(folder: Path, *options: str) -> subprocess.CompletedProcess:
    """pytest with nbval on the notebooks of a folder, with the plugin that `make test` loads."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            ".",
            "--nbval",
            "--nbval-current-env",
            "-q",
            "-p",
            "tools.notebooks.times",
        ]
        + ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "options", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "xdist"]
)
def test_a_slow_notebook_is_told_and_not_judged(tmp_path, options):
    """Two cells of 0.9 s are each within the promise of one second, and together they are not."""
    cell = "#!import time; time.sleep(0.9)"
    notebook(tmp_path / "slow.ipynb", LINE.format(1, 1), cell, cell)
    notebook(tmp_path / "quick.ipynb", LINE.format(1, 600), "#!x = 1")
    notebook(tmp_path / "silent.ipynb", "No promise.", "#!x = 1")
    done = run_timed(tmp_path, *options)
    assert "4 passed" in done.stdout
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    (taken,) = re.findall(r"([\d.]+)  slow.ipynb \(promised: 1\)", done.stdout)
    assert float(taken) >= 1.8
    assert "quick.ipynb (promised: 600)" in done.stdout
    assert "silent.ipynb\n" in done.stdout


def test_make_test_loads_the_clock(pytestconfig):
    assert "tools.notebooks.times" in (ROOT / "conftest.py").read_text()
    assert pytestconfig.pluginmanager.hasplugin("notebook-times") or hasattr(
        pytestconfig, "workerinput"
    )
