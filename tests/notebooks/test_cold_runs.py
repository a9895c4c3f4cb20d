"""Cold runs tell a notebook that agrees from one that is stale."""

import nbformat
import pytest

from tools.notebooks import cold_runs
from tools.notebooks import execute as execute_notebooks

CELL = "import torch\ntorch.set_num_threads(1)\nprint('threads', torch.get_num_threads())"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("cold") / "page.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)]), path)
    path.write_text(execute_notebooks.execute(path))
    return path


def test_the_same_bytes_pass_and_another_output_is_told(page, tmp_path, capsys):
    assert cold_runs.main([str(page), "--runs", "1"]) == 0
    assert "1 notebooks, 1 cold runs: 0 differ" in capsys.readouterr().out
    stale = tmp_path / "stale.ipynb"
    stale.write_text(page.read_text().replace("threads 1", "threads 7"))
    assert cold_runs.main([str(stale), "--runs", "1"]) == 1
    assert "run 1, stale.ipynb: DIFFERS: line " in capsys.readouterr().out


def test_a_cell_that_fails_is_told(page, tmp_path, capsys):
    broken = tmp_path / "broken.ipynb"
    broken.write_text(page.read_text().replace("import torch", "1 / 0"))
    assert cold_runs.main([str(broken), "--runs", "1"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
