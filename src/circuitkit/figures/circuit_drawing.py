"""A circuit as a drawing: a box for each part, the first layer at the bottom, and arrows for wires.

A wire leaves its writer at the top and enters its reader at the bottom, a head at Q, K or V. The
color of an arrow is the input that it enters, and its width is the strength of the wire.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from circuitkit.checks import checked
from circuitkit.figures.pictures import NEGATIVE, POSITIVE, Picture, picture, style
from circuitkit.figures.token_diagram import (
    COLORS,
    INK,
    STREAM,
    Point,
    arrow_between,
    label_on,
    point_on_arrow,
)
from circuitkit.names import Name, parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Across, the unit is the distance of two parts in a row; upwards, it is an inch.
HALF_WIDTH, HALF_HEIGHT = 0.39, 0.24  # of a box
HIGH, LOW = 1.7, 0.75  # distance of two rows with and without wires
PORTS = {"Q": -0.22, "K": 0.0, "V": 0.22}  # where inputs lie, from the middle of a box
WIDEST = 7.0  # of an arrow, in points; the others in proportion
FAINT, NUMBERED = (
    0.03,
    0.1,
)  # shares of the strongest wire: grey below one, no number below the other
ON_NUMBERS = (0.5, 0.28, 0.72, 0.39, 0.61, 0.17, 0.83)  # places of a number, in shares of an arrow


@checked
def circuit(values: Mapping[str, float], *, alt: str, label: str = "") -> Picture:
    """Draw a circuit from numbers by name.

    Parameters
    ----------
    values : numbers of parts, wires and paths, such as `{"L0H1->L1H3.K": 2.1, "L1H3": 9.3}`. The
        number of a part is written in its box. A path without inputs enters each head by its values
    alt : a sentence for readers who cannot see the drawing
    label : what a number is, with its unit

    Returns
    -------
    A picture. The arrows of negative numbers are dashed. The shade of a box is the size of its
    number, blue above zero and orange below.

    Raises
    ------
    ValueError : for a text that is no name, a number that is not finite, a wire that runs
        backwards

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> circuit({"L0H1->L1H3.K": 2.1}, alt="L1H3 finds its key by what L0H1 wrote").numbers
    ('wires: L0H1->L1H3.K 2.1',)
    """
    if not values:
        raise ValueError("There is nothing to draw. Give numbers by name: {'L0H1->L1H3.K': 2.1}.")
    for key, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"The number of {key!r} is {value}, and a width must be finite.")
        require_upwards(key)
    parts = {key: float(value) for key, value in values.items() if "->" not in key}
    wires = {key: float(value) for key, value in values.items() if "->" in key}
    lines = [f"numbers: {label}"] if label else []
    for kind, numbers in (("parts", parts), ("wires", wires)):
        shown_values = [f"{key} {shown(value, numbers)}" for key, value in numbers.items()]
        if shown_values:
            lines.append(f"{kind}: {', '.join(shown_values)}")
    return replace(picture(drawing(parts, wires, label), alt=alt), numbers=tuple(lines))


def require_upwards(key: str) -> None:
    """Raise a `ValueError` for a name that begins with an input, or whose wires run backwards."""
    chain = parse(key)
    for name in chain:
        if name.side and (name is chain[0] or name.layer is None):
            raise ValueError(
                f"{key!r} begins with the input {name}, or {name} has no inputs. Draw parts such "
                "as 'L1H3' and wires such as 'L0H1->L1H3.K'."
            )
    for source, target in zip(chain[:-1], chain[1:], strict=True):
        if row_of(source) >= row_of(target):
            raise ValueError(
                f"{key!r} runs backwards: {target.part} does not come after {source.part}. "
                "Write the writer first, then the reader."
            )


def row_of(name: Name) -> float:
    """A sort key of a part's row: embeddings, then heads and then MLPs of each layer, the output."""
    if name.layer is not None:
        return name.layer + 0.5 * (name.kind in ("N", "MLP", "MLP bias"))
    if name.kind == "unembed":
        return math.inf
    return 1e6 if name.kind in ("unembed bias", "norm bias") else -1.0


def places_of(names: Iterable[Name], height: float) -> dict[Name, Point]:
    """The middle of the box of each part; a row is as wide as the longest, and at least 3."""
    rows: dict[float, list[Name]] = {}
    for name in sorted(names, key=lambda name: (row_of(name), name.order)):
        rows.setdefault(row_of(name), []).append(name)
    width = max(3, *map(len, rows.values()))
    places = {}
    for y, row in enumerate(rows.values()):
        for i, name in enumerate(row):
            places[name] = ((i + 0.5) * width / len(row), y * height)
    return places


def drawing(parts: Mapping[str, float], wires: Mapping[str, float], label: str) -> "Figure":
    """The matplotlib figure of a circuit."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = {name.part for key in [*parts, *wires] for name in parse(key)}
    places = places_of(names, HIGH if wires else LOW)
    right = max(3.0, max(x for x, _ in places.values()) + 0.5)
    top = max(y for _, y in places.values())
    with rc_context():
        style()
        width = min(6.88, 0.4 + 1.25 * right)
        fig = Figure(figsize=(width, top + 1.0))
        fig.set_layout_engine("none")
        ax = fig.add_axes((0, 0, 1, 1))
        ax.set(xlim=(-0.35, right), ylim=(-0.62, top + 0.38))
        ax.axis("off")
        ax.annotate("", (-0.1, top + 0.38), (-0.1, -0.4), arrowprops=STREAM)
        words = {"ha": "center", "va": "center", "fontsize": 10}
        ax.text(-0.24, top / 2, "residual stream", rotation=90, **words)
        ax.text(right / 2, -0.5, label, **words)
        draw_parts(ax, parts, places)
        draw_wires(ax, wires, places, inch=(right + 0.35) / width)
    return fig


def draw_parts(ax: "Axes", parts: Mapping[str, float], places: Mapping[Name, Point]) -> None:
    """Draw a box for each part, with its number if it has one; it hides the arrows behind it."""
    from matplotlib.patches import FancyBboxPatch

    size = min(11.0, 62 / ax.get_xlim()[1])  # of the words: a row of many boxes is narrow
    for name, (x, y) in places.items():
        value = parts.get(str(name))
        words = str(name) if value is None else f"{name} {shown(value, parts)}"
        shade = 0.0 if value is None else 0.4 * abs(value) / largest_of(parts)
        corner = (x - HALF_WIDTH, y - HALF_HEIGHT)
        for face in ("white", (NEGATIVE if value is not None and value < 0 else POSITIVE, shade)):
            box = FancyBboxPatch(
                corner,
                2 * HALF_WIDTH,
                2 * HALF_HEIGHT,
                facecolor=face,
                edgecolor=INK,
                boxstyle="round,pad=0,rounding_size=0.08",
                zorder=5,
            )
            ax.add_patch(box)
        is_head = name.kind in ("H", "N")
        ax.text(x, y + 0.06 * is_head, words, ha="center", va="center", fontsize=size, zorder=6)
        for port, shift in PORTS.items() if is_head else ():
            letter = {"color": COLORS[port], "fontsize": 0.8 * size, "ha": "center", "zorder": 6}
            ax.text(x + shift, y - HALF_HEIGHT + 0.05, port, **letter)


def draw_wires(
    ax: "Axes", wires: Mapping[str, float], places: Mapping[Name, Point], inch: float
) -> None:
    """Draw the arrows, the strongest first, because it has the first choice for its number.

    An inch across is so many units; numbers keep their size where boxes are narrow.
    """
    drawn: list[tuple[Name, Name, str]] = []
    numbers: list[Point] = []
    for key in sorted(wires, key=lambda key: -abs(wires[key])):
        share = abs(wires[key]) / largest_of(wires)
        width = max(0.8, WIDEST * share)
        dashes = "solid" if wires[key] >= 0 else (0, (2, 1))
        line = {"linewidth": width, "linestyle": dashes, "mutation_scale": 8 + 1.2 * width}
        chain = parse(key)
        for source, target in zip(chain[:-1], chain[1:], strict=True):
            port = target.side or ("V" if target.kind in ("H", "N") else "accent")
            color = COLORS[port] if share >= FAINT else "#9AA0A6"
            wire = (source.part, target.part, port)
            start, end = ends_of(places[source.part], places[target.part], port, drawn.count(wire))
            drawn.append(wire)
            bend = 0.15 if end[1] - start[1] > HIGH else 0.0  # around the rows between
            arrow_between(ax, start, end, bend, zorder=2 + share, color=color, **line)
            if target is chain[-1] and share >= NUMBERED:
                on_arrow = [point_on_arrow(ax, start, end, bend, part) for part in ON_NUMBERS]
                across = HALF_WIDTH + 0.28 * inch
                beside = [p for p in on_arrow if lies_apart(p, places.values(), across, 0.36)]
                free = [p for p in beside if lies_apart(p, numbers, 0.54 * inch, 0.22)]
                if free:
                    label_on(ax, free[0], shown(wires[key], wires), color, zorder=4)
                    numbers.append(free[0])


def ends_of(source: Point, target: Point, port: str, n_before: int) -> tuple[Point, Point]:
    """Where an arrow begins and ends; arrows of other paths through the same wire lie beside it."""
    (x, y), (x2, y2) = source, target
    shift, aside = PORTS.get(port, 0.0), 0.07 * n_before
    start = (x + 0.1 * (x2 - x) + 0.5 * shift + aside, y + HALF_HEIGHT)
    return start, (x2 + shift + aside, y2 - HALF_HEIGHT)


def lies_apart(place: Point, others: Iterable[Point], across: float, up: float) -> bool:
    """Whether each of the other places is far enough from this one in one direction."""
    return all(abs(place[0] - x) > across or abs(place[1] - y) > up for x, y in others)


def largest_of(values: Mapping[str, float]) -> float:
    """The largest magnitude, or 1 if all are 0."""
    return max(map(abs, values.values())) or 1.0


def shown(value: float, among: Mapping[str, float]) -> str:
    """A number with as many decimals as the largest one needs, and with a true minus sign."""
    digits = min(3, max(0, 1 - math.floor(math.log10(largest_of(among)))))
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
