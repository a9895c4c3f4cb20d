"""A prediction can be made before its answer is visible, and what it calls right is what the page computes."""

import json

import pytest

from tools.check import predictions as checker
from tools.check.numbers_in_prose import pages

CHOICE = """**Predict.** How large is it?

- about 0.7
- below 0.01

<!-- predict
right: 2
when: out(r'p = (\\S+)') < 0.01
likely: 1
why: it is one part of many
-->"""
NUMBER = """**Predict.** How large is it?

<!-- predict
number: out(r'p = (\\S+)')
likely: 0.7
why: it is one part of many
-->"""
FOLDED = {"tags": ["hide-output"], "jupyter": {"outputs_hidden": True}}


@pytest.fixture
def problems(tmp_path):
    """What is wrong with the predictions of a page of one paragraph and one code cell that prints p = 0.003."""

    def check(text, metadata=FOLDED):
        code = {"cell_type": "code", "source": "p", "outputs": [{"text": "p = 0.003"}]}
        cells = [{"cell_type": "markdown", "source": text}, code | {"metadata": metadata}]
        path = tmp_path / f"{abs(hash((text, str(metadata))))}.ipynb"
        path.write_text(json.dumps({"cells": cells}), "utf-8")
        return checker.problems(path)

    return check


@pytest.mark.parametrize("name", [name for name in pages() if name.endswith(".ipynb")])
def test_predictions_of_the_page_are_true_and_their_answers_wait(name):
    found = checker.problems(pages()[name])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", [CHOICE, NUMBER])
def test_true_predictions_pass(problems, text):
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "metadata", "message"),
    [
        (CHOICE.replace("< 0.01", "> 0.01"), FOLDED, "the stored outputs contradict `when`"),
        (CHOICE.replace("right: 2", "right: 3"), FOLDED, "two different choices of the 2"),
        (CHOICE.replace("likely: 1", "likely: 2"), FOLDED, "two different choices of the 2"),
        (CHOICE.replace("p = ", "q = "), FOLDED, "list index out of range"),
        (CHOICE.replace("why", "because"), FOLDED, "a prediction of a choice has the lines"),
        (NUMBER.replace("number", "right"), FOLDED, "a prediction of a number has the lines"),
        (CHOICE, {}, "no cell after it has the tag hide-output"),
        (CHOICE, {"tags": ["hide-output"]}, "set jupyter.outputs_hidden"),
    ],
)
def test_false_or_visible_answers_are_reported(problems, text, metadata, message):
    assert message in "\n".join(problems(text, metadata))
