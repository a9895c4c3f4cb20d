"""The numbers of the lab's still figure are the library's."""

import json

import pytest

from tools.publish import lab_still

STORED = json.loads(lab_still.NUMBERS.read_text("utf-8"))


@pytest.fixture(scope="module")
def computed():
    return lab_still.effects()


def shown(text: str) -> float:
    return float(text.rstrip("%").replace("−", "-"))


def test_it_is_about_the_same_question():
    assert (STORED["text"], STORED["answer"]) == (lab_still.TEXT, lab_still.ANSWER)


def test_every_number_is_what_the_library_computes(computed):
    probability, found = computed
    assert shown(STORED["whole"]) == pytest.approx(100 * probability, abs=0.51)
    for name, logit, without in STORED["rows"]:
        assert shown(logit) == pytest.approx(found[name][0], abs=0.051)
        assert shown(without) == pytest.approx(100 * found[name][1], abs=0.51)


def test_nothing_that_matters_is_left_out_and_the_largest_stands_first(computed):
    found = computed[1]
    names = [name for name, *_ in STORED["rows"]]
    assert {name for name in found if abs(found[name][0]) >= 1.01} <= {*names}
    assert {name for name in found if abs(found[name][0]) >= 0.99} >= {*names}
    sizes = [abs(shown(logit)) for _, logit, _ in STORED["rows"]]
    assert sizes == sorted(sizes, reverse=True)
