"""The engine on a small exercise of its own: what it names, what it only points at, and what it never says."""

import contextlib
import math
import time

import numpy as np
import pytest
import torch
from transformer_lens import FactoredMatrix

from circuitkit_book.exercises import answers as _run
from circuitkit_book.exercises.checking import check
from circuitkit_book.exercises.exercise import Exercise, Misfit, built


def spec(x, y, W):
    out = torch.zeros(len(x), W.shape[1], dtype=torch.float64)
    for row in range(len(x)):
        for column in range(W.shape[1]):
            out[row, column] = 2 * sum(
                float((x[row, i] + y[row, i]) * W[i, column]) for i in range(len(W))
            )
    return out


def body(x, y, W, *, times=2.0, sign=1.0, shift=0):
    return times * (x + sign * y).roll(shift, 0) @ W


DOUBLE = Exercise(
    about="9.1 twice | easy | 3 minutes | conventions",
    spec=spec,
    body=body,
    axes="row, inner, column",
    inputs={"x": "row inner", "y": "row inner", "W": "inner column"},
    names=("row", "column"),
    choices="""
    times = 1 | once | How often?
    times = 3 | three times | How often?
    sign = -1 | y is subtracted | Which sign?
    shift = 1 | one row late | Which row?
    """,
)


def test_the_mistakes_and_their_pairs_come_from_the_choices():
    assert [mistake.name for mistake in DOUBLE.mistakes] == [
        "once",
        "three times",
        "y is subtracted",
        "one row late",
    ]
    assert len(DOUBLE.pairs) == 5


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda x, y, W: (x + y) @ W, "once"),
        (lambda x, y, W: ((x + y) @ W).float(), "once"),
        (lambda x, y, W: 2 * (x - y) @ W, "y is subtracted"),
        (lambda x, y, W: 3 * (x - y) @ W, "three times and y is subtracted"),
        (lambda x, y, W: (x + y).roll(1, 0) @ W, "once and one row late"),
    ],
)
def test_a_mistake_and_two_mistakes_are_named(wrong, name):
    assert check(DOUBLE, wrong).diagnosis == name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x, y, W: 2 * x @ W, "`y` were left out"),
        (lambda x, y, W: (2 * (x + y) @ W).T, "transposed"),
        (lambda x, y, W: -2 * (x + y) @ W, "opposite sign"),
        (lambda x, y, W: 2 * (x + y) @ W.flip(1), "back to front"),
        (lambda x, y, W: 2 * ((x + y) @ W).sum(0), "summed over row"),
        (lambda x, y, W: (2 * (x + y) @ W).clamp_min(0), "cut off below 0"),
        (lambda x, y, W: 5 * (x + y) @ W, "2.5 times"),
        (lambda x, y, W: (2 * (x + y) @ W) / len(x), "divided by row"),
        (lambda x, y, W: 2 * (x + y) @ W + 7, "plus 7, everywhere"),
        (
            lambda x, y, W: torch.cat([9 * x[:1] @ W, (2 * (x + y) @ W)[1:]]),
            "wrong only at the first row",
        ),
        (lambda x, y, W: 2 * (x + x**3) @ W, "stays as it is when only `y` is changed"),
        (lambda x, y, W: (x + y) @ W / 0, "not finite"),
    ],
)
def test_an_unlisted_mistake_gets_a_hint_and_no_name(wrong, said):
    result = check(DOUBLE, wrong)
    assert result.diagnosis == ""
    assert said in result.hint


def test_a_transposed_matrix_that_crashes_is_found_on_square_cases():
    result = check(DOUBLE, lambda x, y, W: 2 * (x + y) @ W.T)
    assert "raised RuntimeError" in result.message
    assert "`W` were transposed" in result.hint


RIGHT = [
    lambda x, y, W: 2 * (x + y) @ W,
    lambda x, y, W: (2 * (x + y) @ W).float(),
    lambda x, y, W: (2 * (x + y) @ W).tolist(),
    lambda x, y, W: (2 * (x + y) @ W).numpy(),
    lambda x, y, W: list(2 * (x + y) @ W),
    lambda x, y, W: np.asarray(2 * x) @ np.asarray(W) + np.asarray(2 * y) @ np.asarray(W),
    lambda x, y, W: torch.einsum("ri,ic->rc", x + y, W) + (x + y) @ W,
    lambda x, y, W: FactoredMatrix(2 * (x + y), W),
    lambda x, y, W: (2 * (x + y) @ W).to(torch.complex128),
]


@pytest.mark.parametrize("right", RIGHT)
def test_every_form_of_the_right_answer_is_accepted_and_comes_back_as_a_tensor(right):
    result = check(DOUBLE, right)
    assert result
    x, y, W = torch.ones(3, 2), torch.ones(3, 2), torch.ones(2, 4)
    found = result(x, y, W)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.full((3, 4), 8.0))


def test_more_than_the_digits_of_float32_is_a_mistake():
    assert not check(DOUBLE, lambda x, y, W: (2 + 1e-3) * (x + y) @ W)


def test_an_infinite_entry_does_not_excuse_the_others():
    expected = torch.tensor([1.0, -torch.inf, torch.nan])
    assert _run.close(expected.clone(), expected)
    for place, value in ((0, 1.001), (1, -1e9), (1, torch.inf), (2, 0.0)):
        got = expected.clone()
        got[place] = value
        assert not _run.close(got, expected)


def test_the_accepted_answer_may_be_checked_again():
    accepted = check(DOUBLE, RIGHT[0])
    assert check(DOUBLE, accepted)


def test_a_refused_answer_does_not_run_in_later_cells():
    with pytest.raises(ValueError, match="not accepted yet, so there is nothing to run"):
        check(DOUBLE, lambda x, y, W: x @ W)(1, 2, 3)


def test_an_answer_that_changes_its_input_is_refused():
    def greedy(x, y, W):
        x += y
        return 2 * x @ W

    result = check(DOUBLE, greedy)
    assert not result
    assert "changes its input `x` in place" in result.message


def test_an_answer_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(_run, "SECONDS", 0.2)

    def endless(x, y, W):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    assert "does one of its loops never end?" in check(DOUBLE, endless).message


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (torch.eye(2), "it returned Tensor; return W_V, W_O, in this order"),
        ((torch.eye(2),), "it returned 1 things; return W_V, W_O, in this order"),
        ((torch.ones(2), torch.ones(1, 2)), r"W_V has shape \(2,\); expected \(2, d_head\)"),
        ((torch.ones(2, 3), torch.ones(1, 2)), r"W_O has shape \(1, 2\); expected \(3, 2\)"),
        ((torch.ones(2, 3) * math.nan, torch.ones(3, 2)), "W_V holds numbers that are not finite"),
        (("a", torch.ones(3, 2)), "W_V is str; expected numbers"),
    ],
)
def test_wrong_shapes_of_built_matrices_are_named(answer, said):
    with pytest.raises(Misfit, match=said):
        built(answer, W_V=(2, "d_head"), W_O=("d_head", 2))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x, y, W: 2 * (x + y) @ W * W.abs().amax(), "When `W` is twice as large, the right result is twice as large; yours is four times as large."),
        (lambda x, y, W: 2 * (x + y) @ W.tanh(), "The right result of a sum of two `W` is the sum of their results; yours is not."),
        (lambda x, y, W: 2 * (x + y)[:, 1:] @ W[1:].tanh(), "Your result stays as it is when only `x` at its first inner is changed; the right one changes."),
        (lambda x, y, W: 2 * (x + y) @ W + x.sum() * W[0], "the right result changes at the last row alone; yours elsewhere, too."),
    ],
)  # fmt: skip
def test_a_broken_symmetry_is_named_in_the_hint(wrong, said):
    from circuitkit_book.exercises import probes as _probes

    cases = [*DOUBLE.cases()]
    runs = [_run.Run(DOUBLE, wrong, case) for case in cases]
    assert said in " ".join(
        _probes.remarks(DOUBLE, runs, [DOUBLE.spec(**case) for case in cases], wrong)
    )
