"""The survey of a model, the stored one, and its recomputation from the real weights."""

import json
import os
import re
from pathlib import Path

import pytest

from circuitkit import induction
from circuitkit._stored import stored_file
from circuitkit.induction import induction_loss, stored_survey, survey
from circuitkit.induction._scores import KINDS
from tools.study.real_induction import as_table

WEIGHTS = Path(__file__).resolve().parents[2] / "data" / "real-models" / "smollm2-135m"


def test_survey_of_a_handmade_model():
    model = induction.build_induction_model(20, 16)
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


def test_the_table_holds_the_survey():
    found = survey(induction.build_induction_model(20, 16))
    table = json.loads(json.dumps(as_table(found, {"model": "x"})))
    assert table["scores"]["prefix_matching"] == [0.0, 1.0]
    assert table["losses"]["nothing"] == pytest.approx(list(found.losses["nothing"]), abs=1e-5)
    assert table["provenance"] == {"model": "x"}


def test_the_stored_survey_is_whole_and_says_where_it_comes_from():
    found = stored_survey("smollm2-135m")
    assert len(found.scores.names) == 270
    assert all(getattr(found.scores, kind).shape == (270,) for kind in KINDS)
    assert {"model", "package", "licence", "sha256", "weights"} <= found.provenance.keys()
    assert re.fullmatch("[0-9a-f]{64}", found.provenance["sha256"])
    assert set(found.groups) | {"nothing"} == set(found.losses)
    best = found.scores.top("prefix_matching", len(found.groups["induction"]))
    assert tuple(name for name, _ in best) == found.groups["induction"]
    assert best[-1][1] >= 0.4
    assert stored_file("induction", "smollm2-135m.json").stat().st_size < 40_000


def test_the_stored_cuts_are_those_of_the_study():
    study = json.loads(Path(__file__).parents[2].joinpath("tools/study/real_circuit.json").read_text("utf-8"))
    found = stored_survey().effects
    for name, kind in (("accuracy", "key wires"), ("accuracy by size", "key wires by size")):
        assert found[name].sets == (tuple(study["wires"]),)
        assert repr(found[name]) == study[kind]["accuracy"]["line"]
    assert repr(found["loss"]) == study["key wires"]["loss"]["line"]
    for name, one in study["keys"].items():
        assert repr(found[name]) == one["line"]
        assert found[name].sets[0] == tuple(re.findall(r"\S+->\S+\.K", one["line"]))


def test_an_unknown_name_is_refused():
    with pytest.raises(
        ValueError, match=r"name='gpt2'; expected one of \['smollm2-135m'\].*survey\(circuitkit.load_model"
    ):
        stored_survey("gpt2")


@pytest.mark.real_models
@pytest.mark.skipif(not os.environ.get("CIRCUITKIT_REAL_MODELS"), reason="needs 93 MB of weights: `make real-models`")
@pytest.mark.filterwarnings("ignore")
def test_the_stored_survey_is_what_the_weights_give():
    """Another processor rounds differently; the scores are means over 500 positions, so 1e-3 is far above that."""
    import circuitkit

    stored, found = stored_survey("smollm2-135m"), survey(circuitkit.load_model(str(WEIGHTS)))
    assert found.groups == stored.groups
    for kind in ("prefix_matching", "previous_token", "duplicate_token"):
        assert getattr(found.scores, kind) == pytest.approx(getattr(stored.scores, kind), abs=1e-3)
    assert found.scores.copying == pytest.approx(stored.scores.copying, abs=1e-2)
    for group, loss in stored.losses.items():
        assert list(found.losses[group]) == pytest.approx(list(loss), abs=1e-2)
