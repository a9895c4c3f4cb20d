"""How the rules of a report did on models whose circuits are known: the judge, and its stored counts."""

import json

import pytest

import circuitkit as ck
from circuitkit.reports import rules
from studies.bench import judge
from studies.bench.lines import WITHOUT_ANSWER, Line, circuit_line
from studies.bench.load import load

ANSWERS = judge.STORED.parents[4] / "studies/bench/answers-test.json"
PREVIOUS = Line("behaviour", "L0H1", "previous token")
COPYING = {"line": "behaviour", "head": "L1H0", "behaviour": "copying"}
WEAK, WIRE = "L0H0->L1H0.K", "L0H1->L1H0.K"


def test_each_verdict_of_the_judge():
    """One line of each verdict; a circuit is right although it has one wire that is unclear."""
    circuit = {"line": "circuit", "circuit": "induction", "heads": ["L0H1", "L1H0"]}
    answer = {
        "lines": [vars(PREVIOUS), COPYING, circuit | {"wires": [WIRE]}],
        "unclear": [
            {"line": "wire", "wire": WEAK, "lost": 0.3},
            {"line": "skip trigram", "head": "L0H2", "n_strong": 4},
        ],
    }
    wires = [Line("wire", wire=WIRE), Line("wire", wire=WEAK)]
    trigram = Line("skip trigram", "L0H2", trigram=(3, 4, 5))
    found = circuit_line("induction", [WIRE, WEAK])
    verdicts = judge.judged([PREVIOUS, *wires, trigram, found], answer)
    assert {verdict["line"]: verdict["verdict"] for verdict in verdicts} == {
        Line.of(COPYING): "missed",
        PREVIOUS: "right",
        Line.of(circuit | {"wires": [WIRE]}): "right",
        wires[0]: "false",
        wires[1]: "unclear",
        trigram: "unclear",
    }
    table = judge.table_of(verdicts).loc["total"]
    assert table[judge.VERDICTS].tolist() == [2, 1, 1, 2]
    assert table["false discoveries"] == pytest.approx(1 / 3)
    assert table["power"] == pytest.approx(2 / 3)


def test_the_lines_of_a_report_are_those_that_its_page_counts():
    report = ck.report(load(0))
    table = report.table
    tried = judge.tried_lines_of(report)
    n_scores = table["measure"].isin([*rules.ATTENTION, *rules.OF_OUTPUT]).sum()
    assert sum(line.line == "behaviour" for line in tried) == n_scores > 0
    named = judge.lines_of(report)
    n_silent = (table["named"].eq(True) & table["measure"].isin(WITHOUT_ANSWER)).sum()
    assert len(named) == table["named"].eq(True).sum() - n_silent


@pytest.mark.weekly
def test_the_judge_gives_the_stored_counts():
    verdicts, tried = judge.judge(json.loads(ANSWERS.read_text("utf-8")))
    assert judge.counts_of(verdicts, tried) == rules.bench_result()["kinds"]
