"""Write what a report names about a model of the bench in the words of its answers."""

import re
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

CIRCUITS = ("induction", "virtual head")
WITHOUT_ANSWER = ("predicts repeats", "repeats not explained")
"""Lines of a report on which the answers are silent."""


@dataclass(frozen=True)
class Line:
    """What an answer or a report says about a model; fields that its kind does not have are empty.

    Parameters
    ----------
    line : `"behaviour"`, `"wire"`, `"group wire"`, `"skip trigram"` or `"circuit"`
    head, behaviour : of a behaviour; a skip trigram has a head, too
    wire : such as `"L0H1->L1H3.K"`
    trigram : token ids; empty if any skip trigram of the head is meant
    circuit, heads, wires : the kind of a circuit, its heads and its wires, both in order
    """

    line: str
    head: str = ""
    behaviour: str = ""
    wire: str = ""
    trigram: tuple[int, ...] = ()
    circuit: str = ""
    heads: tuple[str, ...] = ()
    wires: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Line":
        """Read a line of an answers file; what was measured is left out."""
        values = {}
        for field in fields(cls):
            value = entry.get(field.name, field.default)
            values[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    @property
    def kind(self) -> str:
        """The behaviour of a head, or else the kind of the line."""
        return self.behaviour or self.line


def circuit_line(kind: str, wires: list[str]) -> Line:
    """Return the line of a circuit, whose heads are those at the ends of its wires."""
    heads = {head for wire in wires for head in re.findall(r"L\d+H\d+", wire)}
    return Line("circuit", circuit=kind, heads=tuple(sorted(heads)), wires=tuple(sorted(wires)))


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
    """Return the lines of some rows of a report's table, each once, if there are answers to them."""
    rows = rows[~rows["measure"].isin(WITHOUT_ANSWER)]
    return list(dict.fromkeys(line_of(row) for row in rows.to_dict("records")))


def line_of(row: dict[str, Any]) -> Line:
    """Return the line of one row of a report's table."""
    name, measure = row["name"], row["measure"]
    if measure in ("wire", "group wire"):
        return Line(measure, wire=name)
    if measure == "skip trigram":
        ids = re.findall(r"#(\d+)", row["text"])
        return Line("skip trigram", name, trigram=tuple(map(int, ids)))
    if measure in CIRCUITS:
        return circuit_line(measure, name.split(", "))
    return Line("behaviour", name, measure)
