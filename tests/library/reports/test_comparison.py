"""Two reports compared line by line: the result of a loop, a checkpoint before induction, and refusals."""

import math

import pytest

import circuitkit as ck
from circuitkit.reports import ModelReport, comparison, document
from circuitkit.reports.lines import Line


def report_of(*lines):
    return ModelReport("mine", document.table_of({"part": list(lines)}), {}, "")


BEFORE = report_of(
    Line("L0H0", "copying", 0.1, 0.05, 0.15, named=False),
    Line("L0H1", "copying", 0.9, 0.85, 0.95, named=True),
    Line("L0H2", "copying", 0.5, 0.4, 0.6, named=True),
    Line("L0H3", "copying", 0.5, 0.4, 0.6, named=True),
    Line("L0H0->L1H0.K", "wire", 0.4, named=False, text="previous token"),
    Line("L0H1", "skip trigram", 3.0, named=True, text="a … b → c"),
)
AFTER = report_of(
    Line("L0H0", "copying", 0.8, 0.7, 0.9, named=True),
    Line("L0H1", "copying", 0.2, 0.1, 0.3, named=False),
    Line("L0H2", "copying", 0.7, 0.65, 0.75, named=True),
    Line("L0H3", "copying", 0.61, 0.55, 0.65, named=True),  # the intervals overlap
    Line("L0H0->L1H0.K", "wire", 0.9, named=False, text="previous token"),
    Line("L0H1", "skip trigram", 2.0, named=True, text="a … b → d"),
)


def test_lines_that_appear_vanish_and_change():
    changed = BEFORE.compared_with(AFTER)
    found = changed[["change", "name", "measure", "value", "value of other"]].to_numpy().tolist()
    assert found[:1] == [["appears", "L0H0", "copying", 0.1, 0.8]]
    assert found[1][:3] == ["appears", "L0H1", "skip trigram"]
    assert math.isnan(found[1][3])
    assert found[1][4] == 2.0
    assert [row[:3] for row in found[2:]] == [
        ["vanishes", "L0H1", "copying"],
        ["vanishes", "L0H1", "skip trigram"],
        ["rises", "L0H2", "copying"],
    ]


def test_the_other_way_round_what_appeared_vanishes_and_what_rose_falls():
    there, back = BEFORE.compared_with(AFTER), AFTER.compared_with(BEFORE)
    opposite = {"appears": "vanishes", "vanishes": "appears", "rises": "falls", "falls": "rises"}
    rows = [
        {
            (opposite.get(row["change"]) if turn else row["change"], row["name"], row["text"])
            for row in table.to_dict("records")
        }
        for turn, table in ((False, there), (True, back))
    ]
    assert rows[0] == rows[1]
    assert BEFORE.compared_with(BEFORE).empty


def test_models_with_other_heads_are_refused():
    with pytest.raises(ValueError, match="models with other heads .4 and 1 heads"):
        BEFORE.compared_with(report_of(Line("L0H0", "copying", 0.1)))


@pytest.mark.weekly
def test_the_induction_circuit_appears_during_training():
    early, late = (ck.report(ck.load_model("two-layer", step=step)) for step in (4200, 24000))
    changed = early.compared_with(late)
    appears = changed[changed["change"] == "appears"]
    assert {"L1H3", "L0H1", "L0H1->L1H3.K"} <= set(appears["name"])
    assert not comparison.compared(late.table, late.table).size
