"""Every catalogued mistake gets its own diagnosis, and nothing right is refused."""

import ast
import inspect
import json
import random
import re
from inspect import signature
from pathlib import Path

import pytest
import torch

from circuitkit import exercises

ROOT = Path(__file__).resolve().parents[2]
ALL = exercises.catalogue()
MISTAKES = [(exercise, mistake) for exercise in ALL for mistake in exercise.mistakes]


def name(value):
    return getattr(value, "number", None) or getattr(value, "name", None)


def check_of(exercise):
    """The public check whose docstring opens with the number of the exercise."""
    found = [
        getattr(exercises, public)
        for public in exercises.__all__
        if public.startswith("check_")
        and f"Exercise {exercise.number}." in (getattr(exercises, public).__doc__ or "")
    ]
    assert len(found) == 1, f"{len(found)} public checks say they are exercise {exercise.number}"
    return found[0]


@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES, ids=name)
def test_each_mistake_gets_its_own_diagnosis(exercise, mistake):
    result = check_of(exercise)(mistake.wrong)
    assert not result.passed
    assert result.done
    assert (
        result.diagnosis == mistake.name
        or f"each of {result.hint.count(' Or: ') + 1} mistakes by itself" in result.hint
    )
    assert mistake.name in result.message
    assert mistake.advice in result.message


@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES, ids=name)
def test_no_advice_calls_another_part_right(exercise, mistake):
    assert not re.search(
        r"\b(is|are) (all )?right[.,:;]", mistake.advice
    )  # a second mistake may sit there


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_the_body_is_right_and_every_choice_is_one_of_its_arguments(exercise):
    assert check_of(exercise)(exercise.body)
    assert set().union(*(mistake.turned for mistake in exercise.mistakes)) <= set(
        signature(exercise.body).parameters
    )


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_two_mistakes_at_once_are_recognised_or_pointed_at(exercise):
    pairs = random.Random(3).sample(exercise.pairs, 8)
    results = [check_of(exercise)(wrong) for _, _, wrong in pairs]
    assert sum(bool(result.hint) for result in results) >= 6


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_a_failure_shows_got_expected_and_where_to_read(exercise):
    message = check_of(exercise)(exercise.mistakes[0].wrong).message
    assert "expected" in message or "raised" in message
    assert "Read again: " in message


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_the_untouched_stub_is_not_done_yet(exercise):
    def stub(*args, **kwargs):
        raise NotImplementedError

    for untouched in (stub, lambda *args, **kwargs: None, None, ...):
        result = check_of(exercise)(untouched)
        assert not result.passed
        assert not result.done
        assert "not done yet" in result.message


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_the_first_case_is_the_smallest_and_sizes_differ(exercise):
    cases = list(exercise.cases())
    if not any(isinstance(v, torch.Tensor) for v in cases[0].values()):
        pytest.skip("no tensors in its cases: nothing to transpose")
    sizes = [sum(v.numel() for v in case.values() if isinstance(v, torch.Tensor)) for case in cases]
    assert sizes[0] <= 1.5 * min(sizes)
    assert max(sizes) > sizes[0]


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_the_cases_are_the_same_at_every_call(exercise):
    for one, other in zip(exercise.cases(), exercise.cases(), strict=True):
        for key in one:
            assert one[key] is other[key] or torch.equal(
                torch.as_tensor(one[key]), torch.as_tensor(other[key])
            )


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_it_has_all_that_a_reader_sees(exercise):
    assert exercise.difficulty in ("easy", "medium", "hard")
    assert 3 <= exercise.minutes <= 60
    assert len(exercise.mistakes) >= 3
    assert all(m.advice.endswith((".", "?")) for m in exercise.mistakes)
    assert len({m.name for m in exercise.mistakes}) == len(
        {(m.name, m.advice) for m in exercise.mistakes}
    )


def anchors(page):
    path = next((ROOT / "book").glob(f"{page}.*"))
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        text = "\n\n".join(
            "".join(cell["source"])
            for cell in json.loads(text)["cells"]
            if cell["cell_type"] == "markdown"
        )
    headings = re.findall(r"^#{1,3} (.+)$", text, re.M)
    return {
        re.sub(r"[^\w\- ]", "", h.lower().replace("`", "")).strip().replace(" ", "-")
        for h in headings
    }


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_it_sends_the_reader_to_a_section_that_exists(exercise):
    page, _, anchor = exercise.read.partition("#")
    assert not anchor or anchor in anchors(page)


@pytest.mark.parametrize("chapter", sorted({e.number.split(".")[0] for e in ALL}))
def test_each_chapter_has_three_to_six_in_order(chapter):
    numbers = [e.number for e in exercises.catalogue(int(chapter))]
    assert 3 <= len(numbers) <= 6
    assert numbers == sorted(set(numbers))


def test_every_chapter_has_exercises():
    assert {e.number.split(".")[0] for e in ALL} == set("12345")


def test_a_chapter_without_exercises_is_refused_by_name():
    with pytest.raises(ValueError, match="there are exercises in chapters"):
        exercises.catalogue(9)


@pytest.mark.parametrize("exercise", ALL, ids=name)
def test_the_specification_uses_nothing_of_ours(exercise):
    source = inspect.getsource(inspect.getmodule(exercise.spec))
    imports = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    ours = [
        n.module
        for n in imports
        if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("circuitkit")
    ]
    assert all(module.startswith("circuitkit.exercises") for module in ours), ours


def test_an_unknown_mistake_still_says_got_and_expected():
    result = exercises.check_k_composition(lambda W_OV, W_QK: torch.tensor(0.5))
    assert not result
    assert result.diagnosis == ""
    assert "it gave 0.5; expected" in result.message


def test_a_constant_factor_is_noticed():
    spec = exercises.check_attention_pattern.exercise.spec
    result = exercises.check_attention_pattern(lambda **case: 3 * spec(**case))
    assert "3 times the expected" in result.message


def test_a_crash_is_shown_and_not_taken_for_a_known_mistake():
    result = exercises.check_head_as_one_matrix(lambda A, W_V, W_O: A[1000])
    assert "raised IndexError" in result.message
    assert result.diagnosis == ""


def test_a_value_in_place_of_a_function_is_refused():
    assert "expected a function" in exercises.check_attention_pattern(torch.eye(2)).message
