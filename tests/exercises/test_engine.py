"""The engine on a small exercise of its own: what it names, what it only points at, and what it never says."""

import contextlib
import dataclasses
import functools
import math
import time

import numpy as np
import pytest
import torch
from transformer_lens import FactoredMatrix

from circuitkit import exercises
from circuitkit.exercises import _run
from circuitkit.exercises._check import _place, check
from circuitkit.exercises._exercise import Exercise, Misfit, built


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
def test_what_no_choice_gives_is_pointed_at_and_not_named(wrong, said):
    result = check(DOUBLE, wrong)
    assert result.diagnosis == ""
    assert said in result.hint


def test_what_may_be_an_accident_of_the_cases_is_not_said():
    def one_row(x, y, W):  # right where there is one choice only
        out = 2 * (x + y) @ W
        return (
            out
            if len(x) < 4
            else out + torch.rand(out.shape, generator=torch.Generator().manual_seed(len(x)))
        )

    assert check(DOUBLE, one_row).hint.startswith("It is right on ")

    causal = dataclasses.replace(
        DOUBLE,
        spec=lambda x, y, W: torch.eye(5).double(),
        body=lambda x, y, W: torch.eye(5).double(),
        choices="",
    )
    below = check(causal, lambda x, y, W: torch.eye(5) + 0.3 * torch.ones(5, 5).tril(-1))
    assert "only" not in below.hint  # nothing but ones and zeros stands elsewhere


def test_values_of_one_line_share_a_name_that_is_told():
    several = dataclasses.replace(
        DOUBLE,
        choices="times = 1 / 3 | another number of times | How often?\nsign = -1 | y is subtracted | Which?",
    )
    assert len(several.mistakes) == 3
    for times in (1, 3):
        assert (
            check(several, lambda x, y, W, n=times: n * (x + y) @ W).diagnosis
            == "another number of times"
        )
        assert (
            check(several, lambda x, y, W, n=times: n * (x - y) @ W).diagnosis
            == "another number of times and y is subtracted"
        )


def test_two_choices_with_one_effect_are_both_offered_and_neither_is_named():
    twin = dataclasses.replace(
        DOUBLE, choices="times = 1 | once | How often?\ntimes = 1.0 | one time | How often?"
    )
    result = check(twin, lambda x, y, W: (x + y) @ W)
    assert result.diagnosis == ""
    assert "each of 2 mistakes" in result.hint


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


def test_what_went_through_float32_is_right_in_whatever_form_it_comes_back():
    assert check(DOUBLE, lambda x, y, W: (2 * (x.float() + y.float()) @ W.float()).double())
    assert check(DOUBLE, lambda x, y, W: (2 * (x.float() + y.float()) @ W.float()).tolist())


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


def test_an_answer_that_changes_its_input_is_told_so():
    def greedy(x, y, W):
        x += y
        return 2 * x @ W

    result = check(DOUBLE, greedy)
    assert not result
    assert "changes its input `x` in place" in result.message


def test_only_the_stub_itself_counts_as_untouched():
    def stub(x, y, W):
        raise NotImplementedError

    assert not check(DOUBLE, stub).done
    result = check(DOUBLE, lambda x, y, W: torch.arange(3).softmax(0))
    assert result.done
    assert "NotImplementedError" in result.message


def test_an_answer_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(_run, "SECONDS", 0.2)

    def endless(x, y, W):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    assert "does one of its loops never end?" in check(DOUBLE, endless).message


def test_built_gives_float64_tensors_in_order():
    W_V, W_O = built((torch.eye(2), [[1, 2]]), W_V=(2, "d_head"), W_O=(1, 2))
    assert W_V.dtype == W_O.dtype == torch.float64
    assert W_O.tolist() == [[1.0, 2.0]]


def test_a_number_may_come_as_a_tensor_of_one():
    assert [part.tolist() for part in built((2, torch.ones(1)), b_Q=(), b_K=())] == [2.0, 1.0]


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
def test_built_says_what_has_the_wrong_form(answer, said):
    with pytest.raises(Misfit, match=said):
        built(answer, W_V=(2, "d_head"), W_O=("d_head", 2))


def test_a_place_is_told_in_words():
    assert _place("02-qk-and-ov-circuits#a-b") == 'chapter 2, "a b" (02-qk-and-ov-circuits.ipynb)'
    assert _place("conventions") == "the page on conventions (conventions.ipynb)"


SIGNED = dataclasses.replace(
    DOUBLE,
    spec=lambda x, y, W: spec(x, y, W).sum(),
    body=lambda x, y, W, *, times=2.0, sign=1.0, shift=0: body(
        x, y, W, times=times, sign=sign
    ).sum(),
    names=(),
)


def test_a_sign_that_did_not_change_is_not_said_to_depend_on_nothing():
    result = check(SIGNED, lambda x, y, W: ((x + y) @ W).sum().sign())
    assert not result.passed
    assert "did not change" not in result.hint


def test_a_constant_is_called_one_and_not_two_mistakes():
    result = check(DOUBLE, lambda x, y, W: torch.zeros(len(x), W.shape[1]) + 0.25)
    assert (
        result.hint == "Every number that comes out is 0.25, on every case. What does it depend on?"
    )


def test_no_mistake_is_told_of_an_entry_that_is_right():
    def answer(
        n_pos, tolerance, eps
    ):  # as if the tolerance were twice as large and half a step a whole one: for the leak alone
        return math.log(n_pos / (2 * tolerance)) / 2, 4 * tolerance / eps

    assert (
        exercises.check_omega_window(answer).hint
        == "Where it fails, it is wrong only at the first end."
    )


def test_the_same_mistake_twice_is_told_once():
    twice = dataclasses.replace(
        DOUBLE,
        body=lambda x, y, W, *, times=1.0, again=1.0: 2 * times * again * (x + y) @ W,
        choices="times = 0.5 | half | How much?\nagain = 0.5 | half | How much?",
    )
    result = check(twice, lambda x, y, W: (x + y) @ W / 2)
    assert result.diagnosis == "half"
    assert result.hint.count("How much?") == 1


def test_a_place_read_off_few_entries_is_not_told():
    def one_entry(x, y, W):
        out = 2 * (x + y) @ W
        out[0, 0] += torch.rand((), generator=torch.Generator().manual_seed(len(x)))
        return out

    wide = dataclasses.replace(DOUBLE, smallest=6)
    assert "only" not in check(wide, one_entry).hint


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x, y, W: 2 * (x + y) @ W * W.abs().amax(), "When `W` is twice as large, the right result is twice as large; yours is four times as large."),
        (lambda x, y, W: 2 * (x + y) @ W.tanh(), "The right result of a sum of two `W` is the sum of their results; yours is not."),
        (lambda x, y, W: 2 * (x + y)[:, 1:] @ W[1:].tanh(), "Your result stays as it is when only `x` at its first inner is changed; the right one changes."),
        (lambda x, y, W: 2 * (x + y) @ W + x.sum() * W[0], "the right result changes at the last row alone; yours elsewhere, too."),
    ],
)  # fmt: skip
def test_a_law_that_the_right_result_keeps_is_told(wrong, said):
    from circuitkit.exercises import _probes

    cases = [*DOUBLE.cases()]
    runs = [_run.Run(DOUBLE, wrong, case) for case in cases]
    assert said in " ".join(
        _probes.remarks(DOUBLE, runs, [DOUBLE.spec(**case) for case in cases], wrong)
    )


def test_no_law_is_told_of_what_the_answer_keeps():
    from circuitkit.exercises import _probes

    runs = [_run.Run(DOUBLE, body, case) for case in DOUBLE.cases()]
    assert not [*_probes._laws(DOUBLE, runs, body)]


def test_the_kind_of_case_on_which_it_fails_is_told():
    kinds = dataclasses.replace(DOUBLE, kinds={"there are many rows": lambda x, y, W: len(x) > 4})
    result = check(
        kinds,
        lambda x, y, W: (
            2 * (x + y) @ W
            + (len(x) > 4)
            * torch.rand(len(x), W.shape[1], generator=torch.Generator().manual_seed(1))
        ),
    )
    assert "cases where there are many rows, and right on all others." in result.hint + " ".join(
        kinds_said(kinds, result)
    )


def test_what_our_own_functions_give_is_worked_out_at_the_first_check():
    asked = {"spec": 0, "body": 0}

    def counted(name, function):
        @functools.wraps(function)
        def again(*args, **kwargs):
            asked[name] += 1
            return function(*args, **kwargs)

        return again

    watched = dataclasses.replace(DOUBLE, spec=counted("spec", spec), body=counted("body", body))
    answers = [
        lambda x, y, W: (x + y) @ W,
        lambda x, y, W: 3 * (x - y) @ W,
        lambda x, y, W: 2 * (x + y) @ W,
    ]
    first, work = [check(watched, answer).message for answer in answers], dict(asked)
    again = [check(watched, answer).message for answer in answers]
    assert (
        first == again == [check(dataclasses.replace(DOUBLE), answer).message for answer in answers]
    )
    assert len({*first}) == 3
    assert asked == work


def kinds_said(exercise, result):
    from circuitkit.exercises import _probes

    cases = [*exercise.cases()]
    runs = [_run.Run(exercise, result.answer, case) for case in cases]
    return _probes.remarks(exercise, runs, [exercise.spec(**case) for case in cases], result.answer)
