"""Write what a report names about a model of the bench in the words of its answers."""

import re
from typing import Any

Line = dict[str, Any]


def lines_of(report: Any) -> list[Line]:
    """Return the lines that a report names, from its table.

    Parameters
    ----------
    report : what `circuitkit.report(load(number))` returns

    Returns
    -------
    Lines in the vocabulary of `answers-fit.json`, each once
    """
    lines = []
    for row in report.table.to_dict("records"):
        if row["named"] is True:
            line = line_of(row)
            if line not in lines:
                lines.append(line)
    return lines


def line_of(row: dict[str, Any]) -> Line:
    """Return the line of one row of a report's table."""
    name, measure = row["name"], row["measure"]
    if measure == "wire":
        return {"line": "wire", "wire": name}
    if measure == "skip trigram":
        ids = [int(number) for number in re.findall(r"#(\d+)", row["text"])]
        return {"line": "skip trigram", "head": name, "trigram": ids}
    if measure in ("induction", "virtual head"):
        wires = name.split(", ")
        return {"line": "circuit", "circuit": measure, "heads": heads_of(wires), "wires": wires}
    return {"line": "behaviour", "head": name, "behaviour": measure}


def heads_of(wires: list[str]) -> list[str]:
    """Return the heads at both ends of some wires, in order."""
    return sorted({head for wire in wires for head in re.findall(r"L\d+H\d+", wire)})
