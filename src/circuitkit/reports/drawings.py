"""The figures of a report as SVG, whose colors are those of the page, light or dark."""

from collections.abc import Iterator
from math import isnan

from markupsafe import Markup
from torch import Tensor

from circuitkit.names import Name, Side, parse
from circuitkit.reports.lines import Line

N_SHADES = 10
"""Values between -1 and 1 are rounded to so many shades of each color."""
LARGEST_MAP, LARGEST_CELL = 140, 30
"""Pixels of a heat map and of one of its cells, at most."""
BOX_WIDTH, BOX_HEIGHT = 104, 40
BOX_DISTANCE, ROW_HEIGHT = 170, 130
MOST_WIRES = 8
"""At most so many wires are drawn."""
PORTS = {"Q": -32, "K": 0, "V": 32}
"""Where an input of a head is, from the middle of its box."""
PLACES = {"Q": 0.3, "K": 0.5, "V": 0.7}
"""Where the number of a wire is, as a share of its way down from the reader."""

Point = tuple[float, float]

# Heat maps


def heat_map(title: str, values: Tensor, across: str, down: str) -> Markup:
    """Draw values between -1 and 1 as shaded cells `[row, column]`; a cell with NaN stays empty."""
    n_rows, n_columns = values.shape
    wide = min(LARGEST_CELL, LARGEST_MAP / n_columns)
    high = min(LARGEST_CELL, LARGEST_MAP / n_rows)
    right, bottom = wide * n_columns, high * n_rows
    cells = Markup().join(
        Markup('<path class="{}" fill-opacity="{:.1f}" d="{}"/>').format(*shade)
        for shade in shades(values)
    )
    return Markup(
        '<svg class="map" role="img" aria-label="{alt}" width="168" height="{height:.0f}" '
        'viewBox="-24 -18 168 {height:.0f}">'
        '<text y="-6">{title}</text>'
        '<rect class="frame" x="-.5" y="-.5" width="{w:.1f}" height="{h:.1f}"/>'
        '<g transform="scale({wide:.3f} {high:.3f})">{cells}</g>'
        '<text class="axis" transform="rotate(-90)" x="{left:.1f}" y="-8">{down}</text>'
        '<text class="axis" y="{below:.1f}">{across}</text></svg>'
    ).format(
        alt=heat_map_alt(title, values, across, down),
        title=title,
        height=bottom + 36,
        w=right + 1,
        h=bottom + 1,
        wide=wide,
        high=high,
        cells=cells,
        left=-bottom,
        below=bottom + 13,
        across=f"{across} 0 to {n_columns - 1} →",
        down=f"← {down}",
    )


def shades(values: Tensor) -> Iterator[tuple[str, float, str]]:
    """Give the class, the opacity and the outline of all cells that have the same shade."""
    steps = (values.clamp(-1, 1) * N_SHADES).round()
    for step in steps.unique().tolist():
        if isnan(step) or step == 0:
            continue
        cells = (steps == step).nonzero().tolist()
        outline = "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)
        yield "rise" if step > 0 else "fall", abs(step) / N_SHADES, outline


def heat_map_alt(title: str, values: Tensor, across: str, down: str) -> str:
    """Say where the largest value is."""
    largest = int(values.nan_to_num(-2).argmax())
    row, column = divmod(largest, values.shape[1])
    value = values[row, column]
    return (
        f"Heat map of {title}; the largest value is {value:.2f}, at {down} {row}, {across} {column}"
    )


# Circuits


def circuit(wires: list[Line], behaviours: dict[str, str]) -> Markup:
    """Draw wires between heads, the first layer at the bottom.

    Parameters
    ----------
    wires : lines of wires, the most important first; `MOST_WIRES` are drawn
    behaviours : what is written into the box of a head, by its name
    """
    by_name = {line.name: line for line in reversed(wires)}
    shown = list(reversed(by_name.values()))[:MOST_WIRES]
    # the heads of a group, such as "L0H0 + L0H1->L1H3.K", have one arrow each
    ends = [
        (parse(writer)[0], parse(line.name.split("->")[-1])[0], line)
        for line in shown
        for writer in line.name.split("->")[0].split(" + ")
    ]
    heads = sorted({name.part for *pair, _ in ends for name in pair}, key=lambda head: head.order)
    layers = sorted({head.layer for head in heads if head.layer is not None})
    rows = [[head for head in heads if head.layer == layer] for layer in reversed(layers)]
    width = BOX_DISTANCE * max(map(len, rows))
    height = (len(rows) - 1) * ROW_HEIGHT + BOX_HEIGHT + 16
    place: dict[Name, Point] = {}
    for down, row in enumerate(rows):
        for i, head in enumerate(row):
            place[head] = (i + 0.5) * width / len(row), down * ROW_HEIGHT
    arrows = [
        arrow(place[source], place[target.part], target.side or "V", line)
        for source, target, line in ends
    ]
    boxes = [box(place[head], str(head), behaviours.get(str(head), "")) for head in heads]
    losses = ", ".join(f"{line.name} ({line.value:.0%})" for line in shown)
    return Markup(
        '<svg class="circuit" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 -4 {} {}">'
        "{}{}</svg>"
    ).format(
        f"Wires between heads, the first layer at the bottom: {losses}",
        width,
        height,
        width,
        height,
        Markup().join(boxes),
        Markup().join(arrows),
    )


def arrow(source: Point, target: Point, side: Side, line: Line) -> Markup:
    """Draw a wire, with the input that it enters and with what is lost when it is cut."""
    x1, y1 = source[0] + PORTS[side], source[1]
    x2, y2 = target[0] + PORTS[side], target[1] + BOX_HEIGHT
    return Markup(
        '<g class="{side}"><path stroke-width="{width:.1f}" d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"/>'
        '<circle cx="{x2:.0f}" cy="{y2:.0f}" r="8"/><text class="port" x="{x2:.0f}" y="{below:.0f}">{side}</text>'
        '<text x="{x:.0f}" y="{y:.0f}">{lost}</text></g>'
    ).format(
        side=side,
        width=1.5 + 4 * max(0.0, line.value),
        x1=x1,
        y1=y1,
        x2=x2,
        y2=y2,
        below=y2 + 4,
        x=x2 + PLACES[side] * (x1 - x2),
        y=y2 + 12 + PLACES[side] * (y1 - y2),
        lost=f"{line.value:.0%}",
    )


def box(place: Point, name: str, behaviour: str) -> Markup:
    """Draw a head with its name and its behaviour."""
    x, y = place
    return Markup(
        '<rect class="frame" x="{:.0f}" y="{}" width="{}" height="{}" rx="5"/>'
        '<text class="name" x="{:.0f}" y="{}">{}</text><text class="does" x="{:.0f}" y="{}">{}</text>'
    ).format(x - BOX_WIDTH / 2, y, BOX_WIDTH, BOX_HEIGHT, x, y + 17, name, x, y + 32, behaviour)
