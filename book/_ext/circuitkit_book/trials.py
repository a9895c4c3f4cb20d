"""The tables of the exercises' blind trials, made from `exercises/blind-trials.csv` when the book is built."""

import csv
from itertools import groupby
from pathlib import Path

MARKER = "<!-- blind trials -->"
FILE = Path(__file__).resolve().parents[3] / "exercises/blind-trials.csv"


def table(text: str) -> str:
    """One table a trial, with a last line of sums."""
    (_, *names), *lines = csv.reader(text.splitlines())
    out: list[str] = []
    for trial, some in groupby(lines, key=lambda line: line[0]):
        counts = [line[1:] for line in some]
        sums = ["all", *(str(sum(int(line[i]) for line in counts)) for i in range(1, len(names)))]
        rows = [names, ["---", *["---:"] * (len(names) - 1)], *counts, sums]
        out += [
            f"*{trial[0].upper()}{trial[1:]}*",
            "\n".join(f"| {' | '.join(row)} |" for row in rows),
        ]
    return "\n\n".join(out)


def fill(app, docname, source) -> None:
    if MARKER in source[0]:
        source[0] = source[0].replace(MARKER, table(FILE.read_text("utf-8")))


def setup(app) -> None:
    app.connect("source-read", fill)
