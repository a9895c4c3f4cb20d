"""Kinds of answers, tried on every exercise: what is slightly, plainly or badly wrong is refused, what is right in any form is not."""

import functools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from circuitkit_book import exercises
from circuitkit_book.exercises.checking import check
from circuitkit_book.exercises.exercise import close
from tools.check.numbers_in_prose import ROOT

ALL = {exercise.name: exercise for exercise in exercises.catalogue()}
NUMBERS = [name for name, exercise in ALL.items() if exercise.observe is None]
#: Where a head that is built has to be right and not equal: attention that is sharper by a factor is as good.
LOOSE = ("induction_head", "two_heads")
BUILT = [name for name in ALL if name not in (*NUMBERS, *LOOSE)]


@functools.cache
def known(name):
    """The exercise without its mistakes, and with a solution that gives again what the real one gave on each case."""
    exercise = ALL[name]
    right = [exercise.solution(*exercise.given(case)) for case in exercise.all_cases()]
    at = [0]

    @functools.wraps(exercise.solution)
    def again(*given):
        at[0] += 1
        return right[(at[0] - 1) % len(right)]

    return replace(exercise, solution=again, mistakes=(), objection=None), right


def verdict(name, change):
    """The result of a check of the right answer with a change of what it returns."""
    exercise, right = known(name)
    returned = iter(right)

    def answer(*given):
        return change(next(returned))

    return check(exercise, answer)


def tensor(value):
    return torch.as_tensor(value, dtype=torch.float64)


def entry_off(value, share):
    """A copy whose largest entry is off by a share of it, or of 1 if that is more."""
    flat = tensor(value).clone().flatten()
    flat[flat.abs().argmax()] += share * max(1.0, float(flat.abs().max()))
    return flat.reshape(tensor(value).shape)


WRONG = {
    "negated": lambda value: -tensor(value),
    "twice": lambda value: 2 * tensor(value),
    "zero": lambda value: 0 * tensor(value),
    "NaN": lambda value: tensor(value) * math.nan,
    "infinite": lambda value: tensor(value) + math.inf,
    "shifted": lambda value: tensor(value) + 1,
    "too large by 3e-5": lambda value: entry_off(value, 3e-5),
    "too small by 3e-5": lambda value: entry_off(value, -3e-5),
    "backwards": lambda value: (
        tensor(value).flip(-1)
        if tensor(value).numel() > 1 and tensor(value).shape[-1] > 1
        else -tensor(value)
    ),
    "one entry NaN": lambda value: entry_off(value, math.nan),
}
FORMS = {
    "as it is": lambda value: value,
    "float32": lambda value: tensor(value).float(),
    "list": lambda value: tensor(value).tolist(),
    "numpy": lambda value: np.asarray(tensor(value)),
    "off by 3e-6": lambda value: entry_off(value, 3e-6),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_kind_of_wrong_number_is_refused_and_every_form_of_the_right_one_is_not(name):
    assert [kind for kind, change in WRONG.items() if verdict(name, change)] == []
    assert [form for form, change in FORMS.items() if not verdict(name, change)] == []


@pytest.mark.parametrize("name", BUILT)
def test_a_wrong_matrix_among_right_ones_is_refused(name):
    returned = known(name)[1][0]
    count = len(returned) if isinstance(returned, tuple) else 1

    def only(index, change):
        def changed(value):
            if not isinstance(value, tuple):
                return change(value)
            return tuple(change(part) if i == index else part for i, part in enumerate(value))

        return changed

    passed = [
        (kind, index)
        for index in range(count)
        for kind, change in WRONG.items()
        if verdict(name, only(index, change))
    ]
    assert passed == []


@pytest.mark.parametrize("name", ALL)
def test_an_answer_that_changes_any_input_is_refused_by_the_name_of_the_input(name):
    exercise, right = known(name)
    names = [
        key for key, value in exercise.all_cases()[0].items() if isinstance(value, torch.Tensor)
    ]
    for changed in set(names) & set(exercise.arguments):
        returned = iter(right)

        def answer(*given, changed=changed, returned=returned):
            given[exercise.arguments.index(changed)].zero_()
            return next(returned)

        result = check(exercise, answer)
        assert not result
        assert f"your function changes its input `{changed}` in place" in result.message


def test_two_results_agree_to_one_part_in_100000_of_the_largest_expected_one():
    for largest in (1.0, 50.0, 0.01):
        expected = torch.tensor([0.0, largest], dtype=torch.float64)
        unit = 1e-5 * max(largest, 1.0)
        for place in (0, 1):
            off = torch.zeros(2, dtype=torch.float64)
            off[place] = unit
            assert close(expected + 0.9 * off, expected)
            assert not close(expected + 1.1 * off, expected)


def words(text):
    """The beginnings of the words of a text."""
    found = re.findall(r"[a-z0-9]+", text.lower())
    return {word[:4] for word in found} - {"the", "a", "of", "and", "in", "by", "is", "to"}


#: Mistakes whose hints say it in other words than their names.
OTHER_WORDS = {
    "all_biases_in_the_rows",
    "diagonal_masked",
    "divisor_of_each_part",
    "mean_over_everything",
    "never_all",
    "not_undone",
    "nothing_replaced",
    "offsets_first",
    "product",
    "readers_with_R",
    "root_mean_square",
    "same_everywhere",
    "two_after_copy",
}


@pytest.mark.parametrize("name", ALL)
def test_hints_that_were_exchanged_would_fit_the_names_of_their_mistakes_worse(name):
    mistakes = [one for one in ALL[name].mistakes if one.__name__ not in OTHER_WORDS]

    def fit(mistake, other):
        said = words(mistake.__name__.replace("_", " "))
        return len(said & words(other.__doc__)) / len(said)

    wrong = [
        (a.__name__, b.__name__)
        for i, a in enumerate(mistakes)
        for b in mistakes[:i]
        if fit(a, a) + fit(b, b) < fit(a, b) + fit(b, a) - 1e-9
    ]
    assert wrong == []


HEADING = re.compile(r"^#+ Ex (\d\.\d+)", re.M)


@pytest.mark.parametrize("chapter", range(1, 6))
def test_a_check_stands_under_the_number_of_its_exercise(chapter):
    (path,) = (ROOT / "book").glob(f"{chapter}-*/exercises.ipynb")
    number, found = "", {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            number = ([number] + HEADING.findall(text))[-1]
        for name in re.findall(r"exercises\.check_(\w+)", text):
            found[name] = number
    assert found == {one.name: one.number for one in exercises.catalogue(chapter)}


def test_exercises_are_numbered_in_the_order_of_the_book_and_read_in_their_chapter():
    numbers = [exercise.number for exercise in exercises.catalogue()]
    assert numbers == sorted(set(numbers))
    for chapter in range(1, 6):
        own = [number for number in numbers if number.startswith(f"{chapter}.")]
        assert [exercise.number for exercise in exercises.catalogue(chapter)] == own
    for exercise in exercises.catalogue():
        assert exercise.section.startswith(f"{exercise.number[0]}-")
        result = getattr(exercises, f"check_{exercise.name}")(None)
        assert result.exercise == f"Ex {exercise.number}, {exercise.title}"
