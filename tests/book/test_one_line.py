"""The pairs of code on the page "In transformer-lens, and here" compute the same numbers."""

import tomllib
from pathlib import Path

import pytest
import torch

DATA = tomllib.loads(Path(__file__).parents[2].joinpath("book/one-line.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def names():
    found = {}
    exec(DATA["setup"], found)
    return found


@pytest.mark.parametrize("task", DATA["task"], ids=lambda task: task["title"])
def test_both_pieces_of_code_give_the_same_numbers(task, names):
    answers = []
    for code in (task["theirs"], task["ours"]):
        with torch.no_grad():
            exec(code, names)
        answers.append(names.pop("found"))
    # both are float32 sums in different orders
    assert (answers[1] - answers[0]).abs().max() < 1e-5 * answers[0].abs().max()
