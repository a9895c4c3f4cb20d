"""Heads that do the same job: no single cut shows them, and a cut of all of them does."""

import pytest
import torch

from circuitkit.reports import measures, wires
from circuitkit.reports.lines import Line
from studies.bench import redundant

MODELS = redundant.models()


def judged(name):
    sizes, recipe = MODELS[name]
    seed = redundant.SEED + list(MODELS).index(name)
    return redundant.judged(name, recipe(seed=seed), sizes)


def test_a_group_is_named_and_its_cut_loses_what_no_single_cut_loses():
    """Three of five heads write the same note; the loss is measured by code of the bench, on other rows."""
    found = judged("group 5")
    heads = " + ".join(f"L{layer}H{number}" for layer, number in found["planted"])
    assert found["named"] == found["circuit"] == [f"{heads}->L2H5.K"]
    ((together, alone, is_true),) = found["measured"]
    assert is_true
    assert together > 0.95
    assert max(alone) < 0.2


@pytest.mark.weekly
def test_most_planted_groups_are_named_and_no_other():
    found = [judged(name) for name in MODELS]
    with_group = [result for result in found if result["planted"]]
    assert sum(bool(result["named"]) for result in with_group) >= 0.9 * len(with_group)
    assert all(is_true for result in found for *_, is_true in result["measured"])
    assert not [result for result in found if not result["planted"] and result["named"]]


def test_an_earlier_head_that_attends_to_itself_is_no_part_of_a_virtual_head():
    """At position 0 and 2 the head attends most to its own position."""
    pattern = torch.tensor([[[1.0, 0, 0], [0.9, 0.1, 0], [0.2, 0.2, 0.6]]])
    tokens = torch.tensor([[7, 8, 9]])
    assert wires.attended_elsewhere(tokens, pattern).tolist() == [[-1, 7, -1]]


def test_repeats_without_a_head_that_matches_prefixes_are_said_to_be_unexplained():
    repeats = [
        Line("model", "loss on the second pass", 2.0),
        Line("model", "predicts repeats", 0.5, p=0.0, named=True),
    ]
    induction = Line("L1H0", "prefix matching", 0.9, named=True)
    other = Line("L1H0", "copying", 0.9, named=True)
    (found,) = measures.unexplained_repeats(repeats, [other])
    assert (found.value, found.named, found.text) == (0.5, True, measures.UNEXPLAINED)
    assert measures.unexplained_repeats(repeats, [other, induction]) == []
    assert measures.unexplained_repeats(repeats[:1], [other]) == []
