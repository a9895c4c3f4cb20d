"""The survey of a model, and the stored results."""

import json
import re
from pathlib import Path

import pytest

from circuitkit.models import stored_file
from circuitkit_book.stored_studies import stored_survey, stored_zoo

STUDY = Path(__file__).resolve().parents[3] / "studies/edition-2/study/real_circuit.json"


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


def change_in(line):
    """The change that a printed effect states, such as `accuracy 0.90 -> 0.20, -0.70 [...]`."""
    return float(re.search(r"-> -?[\d.]+, ([+-][\d.]+)", line)[1])


def test_the_stored_numbers_are_those_of_the_study():
    study, found = json.loads(STUDY.read_text("utf-8")), stored_survey()
    lines = {
        "accuracy": study["key wires"]["accuracy"]["line"],
        "accuracy by size": study["key wires by size"]["accuracy"]["line"],
        "loss": study["key wires"]["loss"]["line"],
    }
    lines |= {name: entry["line"] for name, entry in study["keys"].items()}
    lines |= {name: entry["accuracy"]["line"] for name, entry in study["settings"].items()}
    lines |= {name: e["line"] for name, e in study["enough"].items() if name != "heads"}
    for name, entry in study["settings by both"].items():
        lines[f"{name}, by both"] = entry["accuracy"]["line"]
    assert {*lines} <= {*found.effects}
    for name, line in lines.items():
        assert found.effects[name].change == pytest.approx(change_in(line), abs=0.006), name
    for method, values in found.heads.items():
        wanted = [study[method]["values"][name] for name in found.scores.names]
        assert values.tolist() == pytest.approx(wanted, abs=6e-4)
        assert found.seconds[method] == study[method]["seconds"]
    assert {*found.more} == {"saturated", "sizes", "groups", "sinks", "norms"}
    assert all(found.more[name] == study[name] for name in found.more)


def test_the_zoo_is_whole():
    zoo = stored_zoo()
    assert sorted((one["task"], one["seed"]) for one in zoo) == [
        (t, n) for t in ("different", "recurring") for n in range(8)
    ]
    for one in zoo:
        assert len(one["curve"]) == {"different": 40, "recurring": 150}[one["task"]]
        assert one["whole"] == pytest.approx(one["curve"][-1], abs=0.05)
        assert {
            f"L0H{a}->L1H{b}.{kind}" for a in (0, 1) for b in (0, 1) for kind in "QKV"
        } <= one.keys()


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"no stored file 'gpt2.json'"):
        stored_survey("gpt2")
