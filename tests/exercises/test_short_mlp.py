"""The short answers of chapter 4: right ones pass, known mistakes get their hint, the rest is refused politely."""

import math

import pytest

from circuitkit_book import exercises as ex

RIGHT = {
    "check_second_neuron": [0, 3 / (1 + math.exp(-1))],
    "check_sharpness": 278.5,
    "check_row_of_scores": [2, 42, 40],
    "check_smallest_omega": math.log(2048e6) / 2,
    "check_bias_row": math.sqrt(3),
    "check_n_paths": 13 * 3073,
}
WRONG = {
    "check_second_neuron": ([0, 3], "all attention goes to itself"),
    "check_sharpness": (1278, "where the error is largest"),
    "check_row_of_scores": ([-2, 38, 40], "subtracts it"),
    "check_smallest_omega": (math.log(2048e6), "half of this"),
    "check_bias_row": (2.0, "RMSNorm"),
    "check_n_paths": (12 * 3072, "skip"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_short_answer_passes(name):
    assert getattr(ex, name)(RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_a_known_mistake_gets_its_hint(name):
    answer, hint = WRONG[name]
    result = getattr(ex, name)(answer)
    assert not result
    assert hint in result.message


@pytest.mark.parametrize("name", RIGHT)
def test_no_answer_and_nonsense_are_not_accepted(name):
    assert "No answer yet" in repr(getattr(ex, name)(None))
    assert not getattr(ex, name)("none of these")
    assert not getattr(ex, name)([1.0, 2.0, 3.0, 4.0])
