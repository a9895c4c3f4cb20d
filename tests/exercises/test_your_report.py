"""The last page: it runs the reader's functions on whatever model it names, and leaves one file that asks for nothing."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.utils.capture import capture_output

PAGE = Path(__file__).resolve().parents[2] / "book/your-report.ipynb"
OWN = """# Functions of mine

# --- 2.2 first_share
import torch

def first_share(model, tokens):
    return torch.full((model.cfg.n_layers, model.cfg.n_heads), 0.25)
"""


def run(name):
    """The cells of the page with another name in them; what they leave behind."""
    space = {}
    for cell in nbformat.read(PAGE, as_version=4).cells:
        if cell.cell_type == "code" and "%pip" not in cell.source:
            source = re.sub(r'NAME = ".*"', f'NAME = "{name}"', cell.source)
            exec("from IPython.display import display\n" + source, space)
    plt.close("all")
    return space


@pytest.mark.parametrize(
    "name", ["one-layer", pytest.param("two-layer-mlp", marks=pytest.mark.weekly)]
)
def test_the_page_runs_on_another_model_by_one_word_and_on_the_readers_functions(
    tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    Path("my_circuitkit.py").write_text(OWN)
    with capture_output() as shown:
        space = run(name)
    assert "1 of 23 functions are yours (first_share)" in shown.stdout
    assert (space["nothing"] == 0.25).all()
    text = Path("my-report.html").read_text("utf-8")
    assert text.count("<img ") == 5
    assert f"{name}, by my own tools" in text
    assert "1 of 23 functions are yours" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_without_a_file_it_says_whose_functions_these_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with capture_output() as shown:
        run("one-layer")
    assert "There is no my_circuitkit.py in this folder" in shown.stdout
    assert "There is no my_circuitkit.py" in Path("my-report.html").read_text("utf-8")
