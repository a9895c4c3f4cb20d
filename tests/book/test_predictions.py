"""A prediction can be made before its answer is visible, and what it calls right is what the page computes."""

import json

import pytest

from tools.check import predictions as checker
from tools.check.numbers_in_prose import pages

CHOICE = """**Predict.** How large is it?

- about 0.7
- below 0.01

<!-- predict
value: out(r'p = (\\S+)')
1: x > 0.6
2: x < 0.01
likely: 1
why: it is one part of many
-->"""
NUMBER = """**Predict.** How large is it?

<!-- predict
value: out(r'p = (\\S+)')
likely: 0.7
why: it is one part of many
-->"""
TABLE = """How large are they?

<!-- predict
value: {"one": out(r'p = (\\S+)'), "two": 0.5}
likely: 0.7, 0.5
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


@pytest.mark.parametrize("text", [CHOICE, NUMBER, TABLE])
def test_true_predictions_pass(problems, text):
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "metadata", "message"),
    [
        (
            CHOICE.replace("2: x < 0.01", "2: x > 0.01"),
            FOLDED,
            "cell 0: x is 0.003, and the conditions of the choices [] hold",
        ),
        (
            CHOICE.replace("1: x > 0.6", "1: x < 0.6"),
            FOLDED,
            "the choices ['1', '2'] hold; expected one",
        ),
        (
            CHOICE.replace("1: x > 0.6", "1: x < 0.6").replace("2: x < 0.01", "2: x > 0.6"),
            FOLDED,
            "must be a wrong choice; 1 is right",
        ),
        (CHOICE.replace("p = ", "q = "), FOLDED, "list index out of range"),
        (CHOICE.replace("why", "because"), FOLDED, "a prediction with 2 choices has the lines"),
        (CHOICE.replace("\n<!--", "\nA sentence.\n\n<!--"), FOLDED, "Nothing may lie between"),
        (NUMBER.replace("value", "number"), FOLDED, "a prediction with 0 choices has the lines"),
        (TABLE.replace("0.7, ", ""), FOLDED, "must be 2 numbers that are not all right"),
        (TABLE.replace("0.7", "0.003"), FOLDED, "must be 2 numbers that are not all right"),
        (CHOICE, {}, "no cell after it has the tag hide-output"),
        (CHOICE, {"tags": ["hide-output"]}, "set jupyter.outputs_hidden"),
    ],
)
def test_false_or_visible_answers_are_reported(problems, text, metadata, message):
    assert message in "\n".join(problems(text, metadata))
