"""Every public function refuses wrong arguments in words; the wrong values follow from the annotations (`tests/support/fuzz.py`)."""

import pytest

from tests.support import fuzz

TARGETS = fuzz.targets()
pytestmark = pytest.mark.usefixtures("as_a_reader", "offline")


@pytest.fixture(scope="module")
def offline():
    with fuzz.offline():
        yield


def faults(name, most):
    try:
        return fuzz.faults(TARGETS[name], most)
    except fuzz.NotDerived as missing:
        pytest.skip(f"no right value follows from {missing}")


@pytest.mark.parametrize("name", TARGETS)
def test_a_wrong_value_of_each_argument_is_refused_in_words(name):
    assert faults(name, 1) == []


@pytest.mark.weekly
@pytest.mark.parametrize("name", TARGETS)
def test_no_value_of_an_argument_ends_in_a_raw_error(name):
    assert faults(name, None) == []


@pytest.mark.weekly
@pytest.mark.parametrize("name", TARGETS)
def test_a_call_that_follows_from_the_annotations_gives_a_result(name):
    try:
        what, text = fuzz.attempt(TARGETS[name], fuzz.right(TARGETS[name]))
    except fuzz.NotDerived as missing:
        pytest.skip(f"no right value follows from {missing}")
    if what == "refused":
        pytest.skip(f"the arguments do not go together: {text[:100]}")
    assert what == "result", text


def test_most_functions_are_called():
    """The fuzz would pass if it called nothing."""
    called = []
    for name, target in TARGETS.items():
        try:
            fuzz.right(target)
        except fuzz.NotDerived:
            continue
        called.append(name)
    print(f"{len(called)} of {len(TARGETS)} are called; not: {sorted({*TARGETS} - {*called})}")
    assert {"full_ov", "decompose", "heads", "train", "Heads.pattern", "GatedBlock"} <= {*called}
    assert len(called) > 0.8 * len(TARGETS)


def test_a_function_that_checks_nothing_is_reported():
    def careless(seed: int, k: int):
        return [1, 2, 3][k]

    found = fuzz.faults(fuzz.Target("careless", careless))
    assert any(text.startswith("seed=3: result") for text in found)
    assert any(text.startswith("k=True: result") for text in found)
    assert any(text.startswith("k=3: raw: TypeError") for text in found)
    assert any(text.startswith(f"k={2**70}: raw: IndexError") for text in found)


def test_a_call_without_an_end_is_reported(monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)

    def endless(k):
        while k:
            pass

    assert fuzz.attempt(fuzz.Target("endless", endless), {"k": 1})[0] == "raw"
