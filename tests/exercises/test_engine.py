"""What a reader is told does not depend on number formats, and a built thing of the wrong form is refused by name."""

import dataclasses
import math

import pytest
import torch

from circuitkit.exercises._check import _place, check
from circuitkit.exercises._exercise import Exercise, Mistake, built


def draw(generator, step):
    return {"tokens": torch.arange(3 + step), "x": torch.randn(2 + step, generator=generator, dtype=torch.float64)}


DOUBLE = Exercise(
    number="9.1",
    title="twice",
    minutes=3,
    difficulty="easy",
    read="conventions",
    spec=lambda tokens, x: torch.tensor([2 * float(v) for v in x], dtype=torch.float64),
    draw=draw,
    mistakes=(Mistake("once", lambda tokens, x: x, "How often?"),),
)


def test_an_answer_in_float32_is_right():
    assert check(DOUBLE, lambda tokens, x: (2 * x).float())
    assert not check(DOUBLE, lambda tokens, x: (2.001 * x).float())


def test_an_answer_in_float64_is_held_to_more_digits():
    assert not check(DOUBLE, lambda tokens, x: (2 + 1e-6) * x)


def test_a_mistake_made_in_float32_is_recognised():
    assert check(DOUBLE, lambda tokens, x: x.float()).diagnosis == "once"


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_mistake_that_gives_odd_numbers_is_recognised_and_nothing_else_is(odd):
    def wrong(tokens, x, last=3):
        return torch.cat([x[:1] * odd, last * x[1:]])

    exercise = dataclasses.replace(DOUBLE, mistakes=(Mistake("odd", wrong, "Why?"),))
    assert check(exercise, wrong).diagnosis == "odd"
    assert check(exercise, lambda tokens, x: wrong(tokens, x, last=4)).diagnosis == ""


def test_a_short_list_of_tokens_is_shown_and_a_long_tensor_is_not():
    message = check(DOUBLE, lambda tokens, x: x).message
    assert "(tokens = [0, 1, 2], x (2,))" in message
    many = dataclasses.replace(DOUBLE, draw=lambda g, step: draw(g, step) | {"tokens": torch.arange(100)})
    assert "tokens (100,)" in check(many, lambda tokens, x: x).message


def test_built_gives_float64_tensors_in_order():
    W_V, W_O = built((torch.eye(2), [[1, 2]]), W_V=(2, "d_head"), W_O=(1, 2))
    assert W_V.dtype == W_O.dtype == torch.float64
    assert W_O.tolist() == [[1.0, 2.0]]


def test_a_number_may_come_as_a_tensor_of_one():
    assert [part.tolist() for part in built((2, torch.ones(1)), b_Q=(), b_K=())] == [2.0, 1.0]


@pytest.mark.parametrize("stub", [None, ...])
def test_built_passes_a_stub_on(stub):
    assert built(stub, W_V=(2, 2)) is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (torch.eye(2), "it returned Tensor; return W_V, W_O, in this order"),
        ((torch.eye(2),), "it returned 1 things; return W_V, W_O, in this order"),
        ((torch.ones(2), torch.ones(1, 2)), r"W_V has shape \(2,\); expected \(2, d_head\)"),
        ((torch.ones(2, 3), torch.ones(1, 2)), r"W_O has shape \(1, 2\); expected \(3, 2\)"),
    ],
)
def test_built_says_what_has_the_wrong_form(answer, said):
    with pytest.raises(ValueError, match=said):
        built(answer, W_V=(2, "d_head"), W_O=("d_head", 2))


def test_a_misfit_is_told_in_plain_words():
    build = dataclasses.replace(DOUBLE, observe=lambda answer, tokens, x: built(answer(), W_V=(2, 2), W_O=(3,)))
    message = check(build, lambda: (torch.eye(2), torch.eye(2))).message
    assert "x (2,)) W_O has shape (2, 2); expected (3,)" in message
    assert "raised" not in message


def test_a_renamed_input_is_explained():
    message = check(DOUBLE, lambda tokens, y: 2 * y).message
    assert "raised TypeError" in message
    assert "leave the first line of the stub as it was" in message
    assert "first line" not in check(DOUBLE, lambda tokens, x: x + None).message


def test_an_answer_that_returns_nothing_is_told_so_and_a_stub_is_not():
    def prints(tokens, x):
        2 * x

    def stub(tokens, x):
        raise NotImplementedError

    message = check(DOUBLE, prints).message
    assert "not done yet" in message
    assert "Does it end with `return`?" in message
    assert "return`" not in check(DOUBLE, stub).message
    assert "Replace the stub" in check(DOUBLE, stub).message


def test_a_matrix_of_another_dtype_is_explained():
    message = check(DOUBLE, lambda tokens, x: 2 * torch.eye(len(x), dtype=torch.float32) @ x).message
    assert "raised RuntimeError" in message
    assert "needs dtype=torch.float64" in message
    assert "float64" not in check(DOUBLE, lambda tokens, x: x @ torch.ones(99, dtype=x.dtype)).message


def test_complex_numbers_count_when_they_are_real():
    assert check(DOUBLE, lambda tokens, x: torch.complex(2 * x, 0 * x))


def test_one_number_is_asked_for_without_brackets():
    number = dataclasses.replace(DOUBLE, mistakes=(), spec=lambda tokens, x: x.sum())
    assert "expected a number\n" in check(number, lambda tokens, x: x).message


def test_a_constant_is_said_to_be_missing_only_when_it_is_the_same_on_all_cases():
    single = dataclasses.replace(
        DOUBLE, mistakes=(), spec=lambda tokens, x: x.sum(), draw=lambda g, step: draw(g, step) | {"tokens": step}
    )
    assert "It is 3 times the expected result" in check(single, lambda tokens, x: 3 * x.sum()).message
    assert "times the expected" not in check(single, lambda tokens, x: (3 + tokens) * x.sum()).message


def test_an_answer_that_is_nearly_right_is_told_so():
    assert "It is nearly right, to 0.001 on" in check(DOUBLE, lambda tokens, x: 2 * x + 1e-3).message
    assert "nearly" not in check(DOUBLE, lambda tokens, x: 2 * x + 1).message


def test_a_section_is_named_in_words():
    assert _place("02-qk-and-ov-circuits#two-parts") == 'chapter 2, "two parts" (02-qk-and-ov-circuits.ipynb)'
    assert _place("conventions") == "the page on conventions (conventions.ipynb)"
