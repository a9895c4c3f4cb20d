"""The engine on a small exercise of its own: what it accepts, what it says, and what it protects from."""

import contextlib
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from circuitkit_book.exercises import answers, chapters
from circuitkit_book.exercises.checking import check
from circuitkit_book.exercises.exercise import Exercise, Misfit, built, close, normal


@pytest.fixture(autouse=True)
def twice_is_in_a_book_of_its_own(monkeypatch):
    monkeypatch.setattr(chapters, "CHAPTERS", (("other", "twice"),))


def solution(x, y, W):
    return 2 * (x + y) @ W


def once(x, y, W):
    """Twice the sum is asked for."""
    return (x + y) @ W


def transposed(x, y, W):
    """W is transposed."""
    return 2 * (x + y) @ W.T


def cases(generator):
    for rows, inner, columns in ((2, 3, 4), (4, 2, 3), (3, 5, 2), (4, 4, 4)):
        yield {
            "x": normal(generator, rows, inner),
            "y": normal(generator, rows, inner),
            "W": normal(generator, inner, columns),
        }


TWICE = Exercise(
    name="twice",
    title="twice",
    section="1-residual-stream/stream-is-a-sum#twice-the-sum",
    solution=solution,
    cases=cases,
    axes=("row", "column"),
    mistakes=(once, transposed),
)

RIGHT = [
    solution,
    lambda x, y, W: (2 * (x + y) @ W).float(),
    lambda x, y, W: (2 * (x + y) @ W).tolist(),
    lambda x, y, W: (2 * (x + y) @ W).numpy(),
    lambda x, y, W: list(2 * (x + y) @ W),
    lambda x, y, W: np.asarray(2 * x) @ np.asarray(W) + np.asarray(2 * y) @ np.asarray(W),
    lambda x, y, W: (2 * (x + y) @ W).to(torch.complex128),
    lambda a, b, matrix: 2 * (a + b) @ matrix,
]


@pytest.mark.parametrize("right", RIGHT)
def test_every_form_of_the_right_answer_is_accepted_and_returns_tensors(right):
    result = check(TWICE, right)
    assert result, result.message
    x, y, W = torch.ones(3, 2), torch.ones(3, 2), torch.ones(2, 4)
    assert result(x, y, W=W).dtype == torch.float32
    assert torch.equal(result(x, y, W), torch.full((3, 4), 8.0))


def test_an_accepted_answer_may_be_checked_again():
    assert check(TWICE, check(TWICE, solution))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda x, y, W: ((x + y) @ W).float(), "Twice the sum is asked for."),
        (lambda x, y, W: 2 * (x + y) @ W.mT, "W is transposed."),
        (lambda x, y, W: -2 * (x + y) @ W, "opposite sign on every case"),
        (lambda x, y, W: (2 * (x + y) @ W).T, "the shape is [4, 2]; expected [2, 4] [row, column]"),
        (lambda x, y, W: (2 * (x + y) @ W).T, "Your result is transposed"),
        (lambda x, y, W: 5 * (x + y) @ W, "2.5 times the expected one on every case"),
        (lambda x, y, W: (x + y) @ W / 0, "contains NaN or infinity. Is something divided by 0?"),
        (lambda x, y, W: 1 / (2 * (x + y) @ W), "1 divided by the expected one on every case"),
        (lambda x, y, W: x[1000], "it raised IndexError"),
        (lambda x, y, W: 2 * (x + y) @ W.float(), "Create new tensors with dtype=torch.float64"),
        (lambda x, y, W: "numbers", "it returned str; expected numbers [row, column]"),
        (torch.eye(2), "Give the function, not its result"),
    ],
)
def test_a_wrong_answer_is_explained(wrong, text):
    result = check(TWICE, wrong)
    assert not result.passed
    assert result.done
    assert text in result.message


def test_a_difference_names_the_case_the_entry_and_both_values():
    result = check(TWICE, lambda x, y, W: 2 * (x + y) @ W + 7 * torch.eye(3, 4)[: len(x)])
    assert (
        "On the first wrong case (x [2, 3], y [2, 3], W [3, 4]): the entry [row " in result.message
    )
    assert "; expected " in result.message
    assert (
        'Read again: chapter 1, page "stream is a sum", section "twice the sum"' in result.message
    )


def test_where_columns_are_different_things_the_first_wrong_one_is_named():
    named = replace(TWICE, columns=("first", "second", "third", "fourth"))
    late = torch.tensor([0.0, 1.0, 500.0, 30.0])
    message = check(named, lambda x, y, W: 2 * (x + y) @ W + late).message
    assert re.search(r"the entry \[row \d: second\] is ", message)


def test_more_than_the_digits_of_float32_is_a_mistake():
    assert not check(TWICE, lambda x, y, W: (2 + 1e-3) * (x + y) @ W)


def test_an_infinite_entry_does_not_excuse_the_others():
    expected = torch.tensor([1.0, -torch.inf, torch.nan])
    assert close(expected.clone(), expected)
    for place, value in ((0, 1.001), (1, -1e9), (1, torch.inf), (2, 0.0)):
        other = expected.clone()
        other[place] = value
        assert not close(other, expected)


def test_a_refused_answer_does_not_run_in_later_cells():
    with pytest.raises(ValueError, match="Ex 1.2, twice is not accepted yet"):
        check(TWICE, once)(1, 2, 3)


def test_an_answer_that_changes_its_input_is_refused():
    def greedy(x, y, W):
        x += y
        return 2 * x @ W

    result = check(TWICE, greedy)
    assert not result
    assert "changes its input `x` in place" in result.message


def test_an_answer_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(answers, "SECONDS", 0.2)

    def endless(x, y, W):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    assert "Does one of its loops never end?" in check(TWICE, endless).message


def test_an_answer_that_prints_is_silent_after_the_first_case(capsys):
    def talkative(x, y, W):
        print("shape", list(x.shape))
        return 2 * (x + y) @ W

    assert check(TWICE, talkative)
    assert capsys.readouterr().out == "shape [2, 3]\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (torch.eye(2), "It returned Tensor. Return W_V, W_O, in this order"),
        ((torch.eye(2),), "It returned 1 values. Return W_V, W_O, in this order"),
        ((torch.ones(2), torch.ones(1, 2)), r"W_V has shape \[2\]; expected \[2, d_head\]"),
        ((torch.ones(2, 3), torch.ones(2, 3)), r"W_O has shape .* expected \[3, 2\]. Is it transp"),
        ((torch.ones(3, 2), torch.ones(2, 3)), "Did you exchange W_V and W_O, or transpose both"),
        ((torch.ones(2, 3) * math.nan, torch.ones(3, 2)), "W_V contains NaN or infinity"),
        (("a", torch.ones(3, 2)), "W_V is of type str. Return a tensor"),
    ],
)
def test_wrong_shapes_of_built_matrices_are_named(answer, text):
    with pytest.raises(Misfit, match=text):
        built(answer, W_V=(2, "d_head"), W_O=("d_head", 2))
