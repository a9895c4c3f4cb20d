"""Every exercise: its solution passes, and each of its mistakes is recognised."""

import functools

import pytest
import torch

from circuitkit_book import exercises
from circuitkit_book.exercises import answers, chapters, checking, contents
from circuitkit_book.exercises.exercise import Exercise

ALL = exercises.catalogue()
MISTAKES = [(exercise, mistake) for exercise in ALL for mistake in exercise.mistakes]


def check_of(exercise):
    return getattr(exercises, f"check_{exercise.name}")


cases_once = functools.cache(Exercise.all_cases)


@pytest.fixture(scope="module")
def known():
    """What solutions and mistakes gave, by function and case."""
    return {}


@pytest.fixture
def once(monkeypatch, known):
    """Solutions, and mistakes with which an answer is compared, run once on each case and not again for each answer."""
    attempt_now, right_now = answers.attempt, checking.right_outcome

    def attempt(exercise, answer, case, **options):
        if options:  # the answer itself runs as it does for a reader
            return attempt_now(exercise, answer, case, **options)
        if (answer, id(case)) not in known:
            known[answer, id(case)] = attempt_now(exercise, answer, case)
        return known[answer, id(case)]

    def right_outcome(exercise, case):
        if (exercise.solution, id(case)) not in known:
            known[exercise.solution, id(case)] = right_now(exercise, case)
        return known[exercise.solution, id(case)]

    monkeypatch.setattr(Exercise, "all_cases", cases_once)
    monkeypatch.setattr(answers, "attempt", attempt)
    monkeypatch.setattr(checking, "right_outcome", right_outcome)


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_the_solution_passes(exercise):
    result = check_of(exercise)(exercise.solution)
    assert result, result.message


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_a_missing_answer_is_neither_right_nor_wrong(exercise):
    def stub(*arguments):
        raise NotImplementedError

    for answer in (None, ..., stub, lambda *arguments: None):
        result = check_of(exercise)(answer)
        assert not result.passed
        assert not result.done
        assert "No answer yet." in result.message


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    ("exercise", "mistake"),
    MISTAKES,
    ids=[f"{exercise.name}-{mistake.__name__}" for exercise, mistake in MISTAKES],
)
def test_a_mistake_is_recognised_and_its_hint_is_shown(exercise, mistake):
    result = check_of(exercise)(mistake)
    assert not result.passed
    assert result.mistake == mistake.__name__
    assert f"\n{mistake.__doc__}\nRead again: " in result.message


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_the_cases_are_the_same_at_every_call(exercise):
    for first, second in zip(exercise.all_cases(), exercise.all_cases(), strict=True):
        for name, value in first.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, second[name])
            else:
                assert value is second[name] or value == second[name]


def test_a_chapter_without_exercises_is_refused():
    with pytest.raises(ValueError, match="Chapter 9 has no exercises. Chapters 1 to 5 have some"):
        exercises.catalogue(9)


def test_the_files_with_an_exercise_are_in_the_list_under_their_own_names():
    files = {name for name, module in contents.modules().items() if hasattr(module, "EXERCISE")}
    assert {exercise.name for exercise in ALL} == files  # each of them has a number


def test_the_number_of_an_exercise_is_its_place(monkeypatch):
    names = [exercise.name for exercise in exercises.catalogue(2)]
    first, _, *others = chapters.CHAPTERS
    monkeypatch.setattr(chapters, "CHAPTERS", (first, ("new", *names), *others))
    numbers = [exercise.number for exercise in exercises.catalogue(2)]
    assert numbers == [f"2.{place}" for place in range(2, len(names) + 2)]


def test_an_exercise_without_a_place_and_a_check_that_does_not_exist_are_named():
    with pytest.raises(ValueError, match="Write its name at its place in CHAPTERS, in chapters.py"):
        chapters.number_of("first_shar")
    with pytest.raises(AttributeError, match="Did you mean check_first_share?"):
        exercises.check_first_shar(None)
