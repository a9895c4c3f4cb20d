"""Accepted answers gather in the reader's file and run from there; predictions are noted; pictures are drawn from numbers."""

import importlib.util

import pytest
import torch
from IPython.utils.capture import capture_output

from circuitkit_book import exercises

NOTEBOOK = """
import math
import torch
from torch import ones

HALF = 0.5

def share(values):
    return values.real.sum() / values.abs().sum()

def my_score(W_E, W_V, W_O, W_U):
    return 2 * HALF * share(torch.linalg.eigvals(W_O @ W_U @ W_E @ W_V))

def other_score(W_E, W_V, W_O, W_U):
    return share(torch.linalg.eigvals(W_O @ W_U @ W_E @ W_V))

def norm_gain(d_model):
    gain = ones(d_model + 1) * math.sqrt(d_model / (d_model + 1))
    gain[-1] = 1 / math.sqrt(d_model + 1)
    return gain

BIG = torch.eye(3)

def omega_window(n_pos, tolerance, eps):
    return BIG[0, 0] * 0.5 * math.log(n_pos / tolerance), 4 * tolerance / eps
"""


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A folder of a reader's own, with her functions in it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cells.py"
    path.write_text(NOTEBOOK)
    spec = importlib.util.spec_from_file_location("cells", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_is_written_until_it_is_asked_for(notebook, tmp_path):
    assert exercises.check_copying_score(notebook.my_score)
    assert not (tmp_path / "my_circuitkit.py").exists()
    assert exercises.toolkit().own == ()


def test_an_accepted_answer_is_kept_with_what_it_uses_and_runs_from_the_file(notebook, tmp_path):
    exercises.toolkit(keep=True)
    assert (
        "It is written to my_circuitkit.py as `copying_score`"
        in exercises.check_copying_score(notebook.my_score).message
    )
    assert "It is written to" in exercises.check_norm_gain(notebook.norm_gain).message
    exercises.check_k_composition(lambda W_OV, W_QK: torch.tensor(0.5))
    text = (tmp_path / "my_circuitkit.py").read_text()
    assert "def share(values)" in text
    assert "HALF = 0.5" in text
    tools = exercises.toolkit()
    assert tools.own == ("copying_score", "norm_gain")
    torch.testing.assert_close(tools.norm_gain(3), notebook.norm_gain(3))
    names = {}
    exec(text, names)  # the file is a module of its own, too
    assert names["copying_score"](*[torch.eye(2)] * 4) == 1


def test_a_second_accepted_answer_takes_the_place_of_the_first(notebook, tmp_path):
    exercises.toolkit(keep=True)
    exercises.check_copying_score(notebook.my_score)
    exercises.check_norm_gain(notebook.norm_gain)
    message = exercises.check_copying_score(notebook.other_score).message
    assert "It is written to my_circuitkit.py as `copying_score`" in message
    text = (tmp_path / "my_circuitkit.py").read_text()
    assert "def other_score" in text
    assert "def my_score" not in text
    assert text.count("# --- ") == 2
    assert exercises.toolkit().copying_score(*[torch.eye(2)] * 4) == 1


def test_what_does_not_run_by_itself_is_not_kept_and_the_book_stands_in(notebook):
    exercises.toolkit(keep=True)
    result = exercises.check_omega_window(notebook.omega_window)
    assert result
    assert "It is not written to my_circuitkit.py: name 'BIG' is not defined" in result.message
    tools = exercises.toolkit()
    assert tools.own == ()
    assert tools.omega_window(4, 0.1, 0.01)[1] == 40
    with pytest.raises(
        AttributeError, match="There is no tool 'nothing'. There are logit_in_parts"
    ):
        tools.nothing  # noqa: B018


def test_a_prediction_is_in_when_it_has_a_number_for_each_word():
    assert not exercises.predict(None, ["a", "b"])
    assert not exercises.predict({"a": 1, "b": None}, ["a", "b"])
    assert (
        "'90 %' is not a number: write 90% as 0.9"
        in exercises.predict({"a": "90 %", "b": 1}, ["a", "b"]).message
    )
    assert "90% is 0.9" in exercises.predict({"a": 90, "b": 1}, ["a", "b"]).message
    assert "%" not in exercises.predict({"a": 0, "b": 1}, ["a", "b"]).message
    noted = exercises.predict({"a": 1, "b": 0.5}, ["a", "b"])
    assert noted
    assert noted.answer == {"a": 1.0, "b": 0.5}
    assert "Your prediction is a 1, b 0.5" in noted.message


@pytest.mark.parametrize(
    "values",
    [{"a": 1, "b": 2}, {"you": {"a": 1}, "it": {"a": 2}}, torch.eye(3) - 0.5, torch.eye(2)],
)
def test_a_picture_prints_the_numbers_behind_it(values):
    with (
        capture_output() as said
    ):  # a shell that another test has started shows it in place of printing it
        exercises.picture(values, alt="A picture of four numbers or more.", rows=("a", "b"))
    shown = said.stdout + "".join(str(output.data.get("text/plain", "")) for output in said.outputs)
    assert "Figure: A picture of four numbers" in shown
