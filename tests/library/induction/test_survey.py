"""The survey of a model, the stored one, and its recomputation from the real weights."""

import json
import re
from pathlib import Path

import pytest

from circuitkit import handmade
from circuitkit.induction import induction_loss, stored_survey, stored_zoo, survey
from circuitkit.induction._scores import KINDS
from circuitkit.models import stored_file

WEIGHTS = Path(__file__).resolve().parents[3] / "data" / "real-models" / "smollm2-135m"


def test_survey_of_a_handmade_model():
    model = handmade.build_induction_model(20, 16)
    found = survey(model)
    assert found.groups["induction"] == ("L1H0",)
    assert found.groups["previous token"] == ("L0H0",)
    assert found.groups["random"] == ()
    assert found.losses["nothing"] == induction_loss(model)
    assert found.losses["random"] == found.losses["nothing"]
    assert found.losses["induction"] == induction_loss(model, without=["L1H0"])
    assert found.losses["previous token"] == induction_loss(model, without=["L0H0"])


def test_groups(boot):
    model = boot(n_heads=5, n_layers=2)
    found = survey(model, threshold=0.99)
    assert [len(group) for group in found.groups.values()] == [1, 1, 1]
    assert found.groups["induction"][0] == found.scores.top("prefix_matching", 1)[0][0]
    layer = found.groups["induction"][0].split("H")[0]
    assert found.groups["random"][0].startswith(layer + "H")
    most = survey(model, threshold=0.0)
    assert len(most.groups["induction"]) == 10
    assert most.groups["random"] == ()


def test_the_stored_survey_is_whole_and_says_where_it_comes_from():
    found = stored_survey("smollm2-135m")
    assert len(found.scores.names) == 270
    assert all(getattr(found.scores, kind).shape == (270,) for kind in KINDS)
    assert {"model", "package", "licence", "sha256", "weights"} <= found.provenance.keys()
    assert re.fullmatch("[0-9a-f]{64}", found.provenance["sha256"])
    assert set(found.groups) | {"nothing"} == set(found.losses)
    for loss in found.losses.values():
        assert loss.difference == pytest.approx(loss.second - loss.first, abs=1e-4)
    best = found.scores.top("prefix_matching", len(found.groups["induction"]))
    assert tuple(name for name, _ in best) == found.groups["induction"]
    assert best[-1][1] >= 0.4
    assert stored_file("induction", "smollm2-135m.json").stat().st_size < 75_000


def test_the_stored_cuts_are_those_of_the_study():
    study = json.loads(
        Path(__file__)
        .parents[3]
        .joinpath("studies/edition-2/study/real_circuit.json")
        .read_text("utf-8")
    )
    found = stored_survey().effects
    for name, kind in (("accuracy", "key wires"), ("accuracy by size", "key wires by size")):
        assert found[name].sets == (tuple(study["wires"]),)
        assert repr(found[name]) == study[kind]["accuracy"]["line"]
    assert repr(found["loss"]) == study["key wires"]["loss"]["line"]
    for name, one in study["keys"].items():
        assert repr(found[name]) == one["line"]
        assert found[name].sets[0] == tuple(re.findall(r"\S+->\S+\.K", one["line"]))


def test_the_stored_attributions_and_settings_are_those_of_the_study():
    study = json.loads(
        Path(__file__)
        .parents[3]
        .joinpath("studies/edition-2/study/real_circuit.json")
        .read_text("utf-8")
    )
    found = stored_survey()
    assert {"gradient", "integrated 4", "patching"} <= found.heads.keys()
    for how, values in found.heads.items():
        wanted = [study[how]["values"][name] for name in found.scores.names]
        assert values.tolist() == pytest.approx(wanted, abs=6e-4)
        assert found.seconds[how] == study[how]["seconds"]
    assert len(study["settings"]) >= 10
    for name, one in study["settings"].items():
        assert repr(found.effects[name]) == one["accuracy"]["line"]
        assert found.effects[name].sets == (tuple(study["wires"]),)


def test_what_else_is_stored_is_what_the_study_found():
    study = json.loads(
        Path(__file__)
        .parents[3]
        .joinpath("studies/edition-2/study/real_circuit.json")
        .read_text("utf-8")
    )
    found = stored_survey()
    assert {*found.more} == {"saturated", "sizes", "groups", "sinks", "norms"}
    assert all(found.more[name] == study[name] for name in found.more)
    assert len(found.more["sinks"]["share"]) == len(found.more["sinks"]["on repeats"]) == 270
    assert {*found.more["groups"]} == {*study["settings by both"]} > {*study["settings"]}
    for name, one in study["settings by both"].items():
        assert repr(found.effects[f"{name}, by both"]) == one["accuracy"]["line"]
        if name in study["settings"]:  # the whole model and the cut are those of the other draws
            again, first = (
                found.effects[f"{name}, by both"].values[:2],
                found.effects[name].values[:2],
            )
            assert again.flatten().tolist() == pytest.approx(first.flatten().tolist(), abs=0.03)
    for name, one in study["enough"].items():
        if name != "heads":
            kept = int(re.search(r"keeping (\d+) parts of 270", one["line"])[1])
            assert repr(found.effects[name]) == one["line"]
            assert found.effects[name].sets == (tuple(study["enough"]["heads"][:kept]),)


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
    with pytest.raises(
        ValueError,
        match=r"name='gpt2'; expected one of \['smollm2-135m'\].*survey\(circuitkit.load_model",
    ):
        stored_survey("gpt2")
