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
from pathlib import Path
from typing import Any

import pandas as pd

import circuitkit as ck
from studies.bench.lines import Line, heads_of, kind_of, lines_of, tried_lines_of
from studies.bench.load import load

STORED = Path(ck.__file__).parent / "data/reports/bench.json"
VERDICTS = ["right", "false", "missed", "unclear"]


def key_of(line: Line, unclear_wires: set[str]) -> tuple:
    """Return what two lines must share to be the same line."""
    if line["line"] == "circuit":
        wires = [wire for wire in line["wires"] if wire not in unclear_wires]
        return "circuit", line["circuit"], tuple(heads_of(wires)), tuple(sorted(wires))
    words = [line.get(word) for word in ("head", "behaviour", "wire")]
    return (line["line"], *words, tuple(line.get("trigram", ())))


def kind_of_key(key: tuple) -> str:
    """Return the behaviour of a head, or else the kind of the line."""
    return key[2] if key[0] == "behaviour" else key[0]


def judged(named: list[Line], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a verdict for each named line and for each line that is missed."""
    unclear_wires = {line["wire"] for line in answer["unclear"] if line["line"] == "wire"}
    true = {key_of(line, unclear_wires) for line in answer["lines"]}
    unclear = {key_of(line, unclear_wires) for line in answer["unclear"]}
    found = {key_of(line, unclear_wires) for line in named}
    verdicts = [{"line": key, "verdict": "missed"} for key in sorted(true - found, key=str)]
    for key in sorted(found, key=str):
        # an entry without a trigram stands for all other trigrams of its head
        any_trigram = (*key[:-1], ())
        if key in true:
            verdict = "right"
        elif key in unclear or any_trigram in unclear:
            verdict = "unclear"
        else:
            verdict = "false"
        verdicts.append({"line": key, "verdict": verdict})
    return verdicts


def table_of(verdicts: list[dict[str, Any]]) -> pd.DataFrame:
    """Count verdicts by kind, with the share of false discoveries and the power."""
    frame = pd.DataFrame(verdicts)
    frame["kind"] = frame["line"].map(kind_of_key)
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
        tried.update(kind_of(line) for line in tried_lines_of(report))
        for entry in judged(lines_of(report), answer):
            verdicts.append({"model": number, **entry})
            if entry["verdict"] in ("false", "missed"):
                print(number, entry["verdict"], *entry["line"])
    return verdicts, tried


def counts_of(verdicts: list[dict[str, Any]], tried: Counter[str]) -> dict[str, dict[str, Any]]:
    """Return the counts that are stored for each kind of line.

    Parameters
    ----------
    verdicts, tried : what `judge` returns

    Returns
    -------
    For each kind: how many lines were tried, which is None for circuits because they follow from
    the wires; how many lines got each verdict; and in how many models the right lines are.
    """
    table = table_of(verdicts)
    counts: dict[str, dict[str, Any]] = {}
    for kind in table.index.drop("total"):
        by_verdict = {verdict: int(table.loc[kind, verdict]) for verdict in VERDICTS}
        right = [v for v in verdicts if kind_of_key(v["line"]) == kind and v["verdict"] == "right"]
        models = {verdict["model"] for verdict in right}
        counts[kind] = {"tried": tried.get(kind), **by_verdict, "models": len(models)}
    return counts


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
