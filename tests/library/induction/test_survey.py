"""The survey of a model, and the stored results."""

import re

import pytest

from circuitkit.data import stored_file
from circuitkit_book.stored_studies import stored_survey


def test_the_stored_survey_is_whole_and_says_where_it_comes_from():
    found = stored_survey("smollm2-135m")
    assert found.scores.values.shape == (270, 4)
    assert {"model", "package", "licence", "sha256", "weights"} <= found.provenance.keys()
    assert re.fullmatch("[0-9a-f]{64}", found.provenance["sha256"])
    assert set(found.groups) | {"nothing"} == set(found.losses)
    for loss in found.losses.values():
        assert loss.difference == pytest.approx(loss.second - loss.first, abs=1e-4)
    prefix_matching = found.scores.select(behaviour="prefix matching")
    best = prefix_matching.top(len(found.groups["induction"]))
    assert best.names == found.groups["induction"]
    assert best.values[-1] >= 0.4
    assert stored_file("induction", "smollm2-135m.json").stat().st_size < 75_000


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"no stored file 'gpt2.json'"):
        stored_survey("gpt2")
