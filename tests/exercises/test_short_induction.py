"""The short answers of chapter 3 that are numbers: right ones pass, known mistakes get their hint."""

import pytest

from circuitkit_book import exercises as ex

RIGHT = {"check_rescaled_score": 1, "check_tied_wires": 2 / 3}
WRONG = {
    "check_rescaled_score": (2, "so does the norm of W_OV"),
    "check_tied_wires": (1, "one of them is not known"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_short_answer_passes(name):
    assert getattr(ex, name)(RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_a_known_mistake_gets_its_hint(name):
    answer, hint = WRONG[name]
    result = getattr(ex, name)(answer)
    assert not result
    assert hint in result.message.replace("\n", " ")


@pytest.mark.parametrize("name", RIGHT)
def test_an_open_exercise_says_so(name):
    assert "No answer yet" in getattr(ex, name)(None).message
