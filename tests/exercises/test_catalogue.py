"""Every exercise of the catalogue: its solution passes, and each mistake that it lists gets its own message."""

import random

import pytest
import torch

from circuitkit_book import exercises

ALL = exercises.catalogue()


def name(value):
    return getattr(value, "number", None) or getattr(value, "name", None)


def mistakes():
    """Every mistake of every exercise; of several with one name, all but the first are weekly."""
    seen = set()
    for exercise in ALL:
        for mistake in exercise.mistakes:
            key = (exercise.number, mistake.name)
            marks = [pytest.mark.weekly] if key in seen else []
            seen.add(key)
            yield pytest.param(exercise, mistake, marks=marks)


def check_of(exercise):
    """The public check whose docstring opens with the number of the exercise."""
    checks = [getattr(exercises, name) for name in exercises.__all__ if name.startswith("check_")]
    (found,) = [f for f in checks if f"Exercise {exercise.number}." in (f.__doc__ or "")]
    return found


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_the_solution_passes(exercise):
    assert check_of(exercise)(exercise.body)


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_a_stub_is_not_done_yet(exercise):
    def stub(*arguments, **named):
        raise NotImplementedError

    for untouched in (stub, lambda *arguments, **named: None, None, ...):
        result = check_of(exercise)(untouched)
        assert (result.passed, result.done) == (False, False)
        assert "not done yet" in result.message


@pytest.mark.parametrize(("exercise", "mistake"), [*mistakes()], ids=name)
def test_each_mistake_is_recognised_and_gets_its_advice(exercise, mistake):
    result = check_of(exercise)(mistake.wrong)
    assert not result.passed
    alike = f"each of {result.hint.count(' Or: ') + 1} mistakes by itself"
    assert result.diagnosis == mistake.name or alike in result.hint
    assert mistake.name in result.message
    assert mistake.advice in result.message
    assert "expected" in result.message or "raised" in result.message
    assert "Read again: " in result.message


@pytest.mark.weekly
@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_most_pairs_of_mistakes_get_a_hint(exercise):
    pairs = random.Random(3).sample(exercise.pairs, 8)
    results = [check_of(exercise)(wrong) for _, _, wrong in pairs]
    assert sum(bool(result.hint) for result in results) >= 6


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_the_cases_are_the_same_at_every_call(exercise):
    for one, other in zip(exercise.cases(), exercise.cases(), strict=True):
        for key in one:
            assert one[key] is other[key] or torch.equal(
                torch.as_tensor(one[key]), torch.as_tensor(other[key])
            )


def test_a_chapter_without_exercises_is_refused_by_name():
    with pytest.raises(ValueError, match="there are exercises in chapters"):
        exercises.catalogue(9)


def test_an_unknown_mistake_shows_what_it_gave_and_what_was_expected():
    result = exercises.check_k_composition(lambda W_OV, W_QK: torch.tensor(0.5))
    assert (result.passed, result.diagnosis) == (False, "")
    assert "it gave 0.5; expected" in result.message


def test_a_crash_is_not_taken_for_a_known_mistake():
    result = exercises.check_head_as_one_matrix(lambda A, W_V, W_O: A[1000])
    assert "raised IndexError" in result.message
    assert result.diagnosis == ""


def test_a_value_in_place_of_a_function_is_refused():
    assert "expected a function" in exercises.check_attention_pattern(torch.eye(2)).message
