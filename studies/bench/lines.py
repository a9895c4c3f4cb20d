"""Write what a report names about a model of the bench in the words of its answers."""

import re
from typing import Any

import pandas as pd

Line = dict[str, Any]
CIRCUITS = ("induction", "virtual head")


def lines_of(report: Any) -> list[Line]:
    """Return the lines that a report names, from its table.

    Parameters
    ----------
    report : what `circuitkit.report(load(number))` returns

    Returns
    -------
    Lines in the vocabulary of `answers-fit.json`, each once
    """
    table = report.table
    return distinct_lines(table[table["named"].eq(True)])


def tried_lines_of(report: Any) -> list[Line]:
    """Return the lines that a report could have named, each once, without circuits."""
    table = report.table
    is_decided = table["named"].notna() & ~table["measure"].isin(CIRCUITS)
    return distinct_lines(table[is_decided])


def distinct_lines(rows: pd.DataFrame) -> list[Line]:
    """Return the lines of some rows of a report's table, each once."""
    lines: list[Line] = []
    for row in rows.to_dict("records"):
        line = line_of(row)
        if line not in lines:
            lines.append(line)
    return lines


def kind_of(line: Line) -> str:
    """Return the behaviour of a head, or else the kind of the line."""
    return line["behaviour"] if line["line"] == "behaviour" else line["line"]


def line_of(row: dict[str, Any]) -> Line:
    """Return the line of one row of a report's table."""
    name, measure = row["name"], row["measure"]
    if measure == "wire":
        return {"line": "wire", "wire": name}
    if measure == "skip trigram":
        ids = [int(number) for number in re.findall(r"#(\d+)", row["text"])]
        return {"line": "skip trigram", "head": name, "trigram": ids}
    if measure in CIRCUITS:
        wires = name.split(", ")
        return {"line": "circuit", "circuit": measure, "heads": heads_of(wires), "wires": wires}
    return {"line": "behaviour", "head": name, "behaviour": measure}


def heads_of(wires: list[str]) -> list[str]:
    """Return the heads at both ends of some wires, in order."""
    return sorted({head for wire in wires for head in re.findall(r"L\d+H\d+", wire)})
