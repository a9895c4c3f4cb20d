"""How answers are judged, on a small exercise: forms that are accepted, and what is said about those that are not."""

import contextlib
import math
import time

import numpy as np
import pytest
import torch
from transformer_lens import FactoredMatrix

from circuitkit_book.exercises import answers
from circuitkit_book.exercises.checking import check
from circuitkit_book.exercises.exercise import Exercise, Misfit, built, normal


def solution(x, W):
    return 2 * x @ W


def once(x, W):
    """The factor is missing."""
    return x @ W


def cases(generator):
    for rows, inner, columns in [(2, 3, 4), (3, 2, 5), (4, 4, 4)]:
        yield {"x": normal(generator, rows, inner), "W": normal(generator, inner, columns)}


TWICE = Exercise(
    number="9.1",
    name="twice",
    title="twice a product",
    section="02-qk-and-ov-circuits#two-circuits",
    solution=solution,
    cases=cases,
    mistakes=(once,),
    axes=("row", "column"),
)


@pytest.mark.parametrize(
    "right",
    [
        lambda x, W: (2 * x @ W).float(),
        lambda x, W: (2 * x @ W).tolist(),
        lambda x, W: np.asarray(2 * x) @ np.asarray(W),
        lambda x, W: FactoredMatrix(2 * x, W),
    ],
)
def test_every_form_of_the_right_answer_is_accepted_and_returns_a_tensor(right):
    result = check(TWICE, right)
    assert result, result.message
    returned = result(torch.ones(3, 2), torch.ones(2, 4))
    assert returned.dtype == torch.float32
    assert torch.equal(returned, torch.full((3, 4), 4.0))


@pytest.mark.parametrize(
    "wrong", [once, lambda x, W: (x @ W).float(), lambda x, W: x.tolist() @ W.numpy()]
)
def test_a_mistake_is_recognised_by_its_results(wrong):
    result = check(TWICE, wrong)
    assert (result.passed, result.mistake) == (False, "once")
    assert 'The factor is missing.\nRead again: chapter 2, "two circuits"' in result.message


def endless(x, W):
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


def changes_its_input(x, W):
    x *= 2
    return x @ W


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda x, W: 2 * (x @ W)[0], "the shape is [4]; expected [2, 4] [row, column]."),
        (lambda x, W: (2 * x @ W).T, "Your result is transposed"),
        (lambda x, W: -2 * x @ W, "Your result has the opposite sign on every case."),
        (lambda x, W: 5 * x @ W, "Your result is 2.5 times the expected one on every case."),
        (lambda x, W: 2 * x @ W + 0 * x.sum() / 0, "The result contains NaN or infinity. Is something divided by 0?"),
        (lambda x, W: (2 * x @ W).index_fill(1, torch.tensor([2]), 9), "column 2] is 9; expected "),
        (lambda x, W: x[1000], "it raised IndexError: index 1000 is out of bounds"),
        (lambda x, W: 2 * x @ W.float(), "Create new tensors with dtype=torch.float64."),
        (lambda x, W: {"a": 1}, "it returned dict; expected numbers [row, column]."),
        (changes_its_input, "your function changes its input `x` in place. Write `x = x - r`, not `x -= r`."),
        (lambda x, W: 2.002 * x @ W, "Your result is 1.001 times the expected one"),
        (torch.eye(2), "The answer is of type Tensor. Give the function, not its result."),
    ],
)  # fmt: skip
def test_any_other_wrong_answer_gets_a_plain_sentence(wrong, sentence):
    result = check(TWICE, wrong)
    assert (result.passed, result.done) == (False, True)
    assert result.mistake in ("", "input_changed")
    assert sentence in result.message


def test_an_answer_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(answers, "SECONDS", 0.2)
    assert "Does one of its loops never end?" in check(TWICE, endless).message


def test_an_untouched_answer_is_told_from_an_error_of_torch():
    def stub(x, W, *text):
        raise NotImplementedError(*text)

    for untouched in (None, ..., stub, lambda x, W: None):
        result = check(TWICE, untouched)
        assert (result.passed, result.done) == (False, False)
        assert "No answer yet." in result.message
    assert check(TWICE, lambda x, W: stub(x, W, "no kernel for this type")).done


def test_a_wrong_answer_cannot_be_used_in_later_cells():
    with pytest.raises(ValueError, match="is not accepted yet"):
        check(TWICE, once)(1, 2)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (torch.eye(2), r"It returned Tensor\. Return W_V, W_O, in this order"),
        ((torch.eye(2),), r"It returned 1 values\. Return W_V, W_O, in this order"),
        ((torch.ones(2), torch.ones(1, 2)), r"W_V has shape \[2\]; expected \[2, d_head\]"),
        ((torch.ones(2, 3), torch.ones(2, 3)), r"expected \[3, 2\]\. Is it transposed\?"),
        ((torch.ones(2, 3) * math.nan, torch.ones(3, 2)), "W_V contains NaN or infinity"),
    ],
)
def test_wrong_shapes_of_built_matrices_are_named(answer, sentence):
    with pytest.raises(Misfit, match=sentence):
        built(answer, W_V=(2, "d_head"), W_O=("d_head", 2))
