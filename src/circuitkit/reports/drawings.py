"""What the figures of a report show: shades of heat maps, and wires between heads. `drawings.html` draws them."""

from itertools import groupby
from typing import Any

from torch import Tensor

from circuitkit.figures.attention_view import shades
from circuitkit.names import parse
from circuitkit.reports.lines import Line

N_SHADES = 10
"""Values between -1 and 1 are rounded to so many shades of each color."""
MOST_WIRES = 8
"""At most so many wires are drawn."""


def heat_map(title: str, values: Tensor, across: str, down: str) -> dict[str, Any]:
    """Return what a heat map of `[row, column]` shows; a cell with NaN stays empty."""
    row, column = divmod(int(values.nan_to_num(-2).argmax()), values.shape[1])
    return {
        "title": title,
        "across": across,
        "down": down,
        "shape": values.shape,
        "shades": list(shades(values.numpy(), N_SHADES)),
        "largest": (float(values[row, column]), row, column),
    }


def circuit(wires: list[Line]) -> dict[str, Any]:
    """Return the arrows of the first wires, and their heads by layer, the last layer first.

    A group such as `L0H0 + L0H1->L1H3.K` has an arrow for each of its heads, and the last has what they lose together.
    """
    lines: dict[str, Line] = {}
    for line in wires:
        lines.setdefault(line.name, line)
    shown = list(lines.values())[:MOST_WIRES]
    arrows = []
    for line in shown:
        writers, reader = line.name.split("->")
        (name,) = parse(reader)
        *others, last = writers.split(" + ")
        label = f"{100 * line.value:.0f}%"
        for writer in others:
            arrows.append((writer, str(name.part), name.side, line.value, ""))
        label = f"together {label}" if others else label
        arrows.append((last, str(name.part), name.side, line.value, label))
    heads = {parse(name)[0] for arrow in arrows for name in arrow[:2]}
    in_order = sorted(heads, key=lambda head: (-(head.layer or 0), head.number or 0))
    rows = [list(map(str, same)) for _, same in groupby(in_order, lambda head: head.layer)]
    return {"arrows": arrows, "rows": rows, "lines": shown}
