"""Compare the reports of the models of a bench with its answers.

    python -m studies.bench.judge studies/bench/answers-fit.json
    python -m studies.bench.judge studies/bench/answers-test.json --store COMMIT

The unit is a line of a report. A named line that is neither in `lines` nor in `unclear` is a false
discovery, and a line in `lines` that no report names is missed. Lines in `unclear` are left out. A
circuit is right if its kind, its heads and its wires are those of an answer; wires that are
unclear, and heads that only they join, are left out of this comparison.

With `--store`, the counts are stored with the library, and each report says them in its last
section. COMMIT is the one in which the rules were fixed, before the models were judged. After that,
`python -m tools manifest` records the hash of the file.
"""

import argparse
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import binomtest

import circuitkit as ck
from studies.bench.lines import Line, circuit_line, lines_of, tried_lines_of
from studies.bench.load import load

STORED = Path(ck.__file__).parent / "data/reports/bench.json"
VERDICTS = ["right", "false", "missed", "unclear"]


def without(line: Line, unclear_wires: set[str]) -> Line:
    """Return a line as it is compared: a circuit without unclear wires."""
    if line.line != "circuit":
        return line
    return circuit_line(line.circuit, [wire for wire in line.wires if wire not in unclear_wires])


def judged(named: list[Line], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a verdict for each named line and for each line that is missed."""
    true, unclear = ([Line.of(entry) for entry in answer[key]] for key in ("lines", "unclear"))
    unclear_wires = {line.wire for line in unclear}
    true = {without(line, unclear_wires) for line in true}
    found = {without(line, unclear_wires) for line in named}
    verdicts = [{"line": line, "verdict": "missed"} for line in sorted(true - found, key=str)]
    for line in sorted(found, key=str):
        # a line without a trigram stands for all other trigrams of its head
        any_trigram = replace(line, trigram=())
        if line in true:
            verdict = "right"
        elif line in unclear or any_trigram in unclear:
            verdict = "unclear"
        else:
            verdict = "false"
        verdicts.append({"line": line, "verdict": verdict})
    return verdicts


def table_of(verdicts: list[dict[str, Any]]) -> pd.DataFrame:
    """Count verdicts by kind, with the share of false discoveries and the power."""
    frame = pd.DataFrame(verdicts)
    frame["kind"] = [verdict["line"].kind for verdict in verdicts]
    total = frame.assign(kind="total")
    counts = pd.concat([frame, total]).groupby("kind", sort=False)["verdict"]
    table = counts.value_counts().unstack(fill_value=0)
    table = table.reindex(columns=VERDICTS, fill_value=0)
    table["false discoveries"] = table["false"] / (table["right"] + table["false"])
    table["power"] = table["right"] / (table["right"] + table["missed"])
    return table


def judge(answers: dict[str, Any]) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Make a report of each model, and compare it with the answer.

    Parameters
    ----------
    answers : the content of an answers file

    Returns
    -------
    The verdicts on all models, and how many lines of each kind the reports tried.
    """
    verdicts: list[dict[str, Any]] = []
    tried: Counter[str] = Counter()
    for number, answer in answers.items():
        report = ck.report(load(int(number)))
        for part, problem in report.problems.items():
            print(number, "not computed:", part, problem)
        tried.update(line.kind for line in tried_lines_of(report))
        for verdict in judged(lines_of(report), answer):
            verdicts.append({"model": number, **verdict})
            if verdict["verdict"] in ("false", "missed"):
                print(number, verdict["verdict"], verdict["line"])
    return verdicts, tried


def counts_of(verdicts: list[dict[str, Any]], tried: Counter[str]) -> dict[str, dict[str, Any]]:
    """Return the counts that are stored for each kind of line.

    Parameters
    ----------
    verdicts, tried : what `judge` returns

    Returns
    -------
    For each kind: how many lines were tried, which is None for circuits because they follow from
    the wires; how many lines got each verdict; in how many models the right lines are; and the
    exact bounds at 95% of the share of true lines that are named and of the share of named lines
    that are false.
    """
    table = table_of(verdicts)
    counts: dict[str, dict[str, Any]] = {}
    for kind in table.index.drop("total"):
        by_verdict = {verdict: int(table.loc[kind, verdict]) for verdict in VERDICTS}
        right = [v for v in verdicts if v["line"].kind == kind and v["verdict"] == "right"]
        models = {verdict["model"] for verdict in right}
        counts[kind] = {"tried": tried.get(kind), **by_verdict, "models": len(models)}
        counts[kind] |= bounds_of(by_verdict)
    return counts


def bounds_of(counts: dict[str, int]) -> dict[str, float]:
    """Return the lower bound of the power and the upper bound of the share of false lines, at 95%.

    Examples
    --------
    >>> bounds_of({"right": 14, "false": 0, "missed": 0})
    {'least_power': 0.8074, 'most_false': 0.1926}
    """
    right = counts["right"]
    least = [
        binomtest(right, right + others, alternative="greater").proportion_ci(0.95).low
        for others in (counts["missed"], counts["false"])
    ]
    return {"least_power": round(least[0], 4), "most_false": round(1 - least[1], 4)}


def main() -> None:
    """Judge the models of an answers file, print the table, and store the counts if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--store", metavar="COMMIT", help="store the counts, with this commit")
    arguments = parser.parse_args()
    answers = json.loads(arguments.answers.read_text("utf-8"))
    verdicts, tried = judge(answers)
    print(table_of(verdicts).round(3).to_string())
    if arguments.store:
        counts = counts_of(verdicts, tried)
        result = {"rules": arguments.store, "models": len(answers), "kinds": counts}
        STORED.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
