"""Compare the reports of the models of a bench with its answers.

    python -m studies.bench.judge studies/bench/answers-fit.json

The unit is a line of a report. A named line that is neither in `lines` nor in `unclear` is a false
discovery, and a line in `lines` that no report names is missed. Lines in `unclear` are left out. A
circuit is right if its kind, its heads and its wires are those of an answer; wires that are
unclear, and heads that only they join, are left out of this comparison.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

import circuitkit as ck
from studies.bench.lines import Line, heads_of, lines_of
from studies.bench.load import load


def key_of(line: Line, unclear_wires: set[str]) -> tuple:
    """Return what two lines must share to be the same line."""
    if line["line"] == "circuit":
        wires = [wire for wire in line["wires"] if wire not in unclear_wires]
        return "circuit", line["circuit"], tuple(heads_of(wires)), tuple(sorted(wires))
    words = [line.get(word) for word in ("head", "behaviour", "wire")]
    return (line["line"], *words, tuple(line.get("trigram", ())))


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
    frame["kind"] = [line[2] if line[0] == "behaviour" else line[0] for line in frame["line"]]
    total = frame.assign(kind="total")
    counts = pd.concat([frame, total]).groupby("kind", sort=False)["verdict"]
    table = counts.value_counts().unstack(fill_value=0)
    table = table.reindex(columns=["right", "false", "missed", "unclear"], fill_value=0)
    table["false discoveries"] = table["false"] / (table["right"] + table["false"])
    table["power"] = table["right"] / (table["right"] + table["missed"])
    return table


def main() -> None:
    """Make a report of each model, and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    answers = json.loads(parser.parse_args().answers.read_text("utf-8"))
    verdicts = []
    for number, answer in answers.items():
        report = ck.report(load(int(number)))
        for part, problem in report.problems.items():
            print(number, "not computed:", part, problem)
        of_model = judged(lines_of(report), answer)
        verdicts += of_model
        for entry in of_model:
            if entry["verdict"] in ("false", "missed"):
                print(number, entry["verdict"], *entry["line"])
    print(table_of(verdicts).round(3).to_string())


if __name__ == "__main__":
    main()
