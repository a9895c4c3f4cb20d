"""The script that writes outputs is deterministic, normalises, and in --check mode writes nothing."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest

from tools.notebooks import execute as script

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/notebooks"

MESSY = """
import os, sys
import torch
print(sorted(os.listdir(".")), torch.get_num_threads(), os.environ["HF_HUB_OFFLINE"])
print("a", end="", flush=True); print("b", flush=True)
"""


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    """A notebook as an editor might save it: odd ids, timing, counts of an older session, another kernel."""
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell(
                "# Title", metadata={"jupyter": {"outputs_hidden": True}}
            ),
            nbformat.v4.new_code_cell(
                MESSY,
                execution_count=41,
                metadata={
                    "execution": {"iopub.status.busy": "2026-01-01T00:00:00Z"},
                    "tags": ["kept"],
                },
            ),
            nbformat.v4.new_code_cell("1 + 1", execution_count=40),
        ],
        metadata={
            "kernelspec": {"name": "my-env", "display_name": "Mine"},
            "language_info": {"name": "python", "version": "3.9.1"},
        },
    )
    path = tmp_path_factory.mktemp("messy") / "messy.ipynb"
    nbformat.write(notebook, path)
    (path.parent / "data.csv").write_text("only here\n")
    return path


@pytest.fixture(scope="module")
def executed(messy):
    return script.execute(messy)


def test_two_runs_write_the_same_bytes(messy, executed):
    assert script.execute(messy) == executed


def test_the_result_is_normalised(executed):
    notebook = json.loads(executed)
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert [cell["id"] for cell in notebook["cells"]] == ["cell-00", "cell-01", "cell-02"]
    assert [cell.get("execution_count") for cell in notebook["cells"]] == [None, 1, 2]
    assert [cell["metadata"] for cell in notebook["cells"]] == [{}, {"tags": ["kept"]}, {}]
    assert executed.endswith("}\n")


def test_it_runs_in_an_empty_folder_with_one_thread_and_joins_streams(executed):
    (output,) = json.loads(executed)["cells"][1]["outputs"]
    assert "".join(output["text"]) == "[] 1 1\nab\n"


def test_check_writes_nothing_and_reports(messy, capsys):
    before = messy.read_bytes()
    assert script.main(["--check", str(messy)]) == 1
    assert "DIFFERS" in capsys.readouterr().out
    assert messy.read_bytes() == before


def test_writing_then_checking_agrees(tmp_path, capsys):
    path = Path(shutil.copy(FIXTURES / "stale-text.ipynb", tmp_path))
    assert script.main([str(path)]) == 0
    assert "written" in capsys.readouterr().out
    assert script.main(["--check", str(path)]) == 0
    assert "unchanged" in capsys.readouterr().out


def test_a_failing_cell_writes_nothing(tmp_path, capsys):
    path = Path(shutil.copy(FIXTURES / "error-output.ipynb", tmp_path))
    before = path.read_bytes()
    assert script.main([str(path)]) == 1
    assert "FAILED, nothing written" in capsys.readouterr().out
    assert path.read_bytes() == before
