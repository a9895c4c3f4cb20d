"""Tokens from left to right, layers from bottom to top, and arrows for the information that moves."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from circuitkit.checks import checked
from circuitkit.figures.attention_view import visible
from circuitkit.figures.pictures import Picture, picture, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"Q": "#0072B2", "K": "#D55E00", "V": "#009E73", "accent": "#5B4B8A"}
INK = "#262626"
STREAM = {"arrowstyle": "-|>", "color": "#C9CDD3", "linewidth": 2.5, "mutation_scale": 12}
Place = tuple[str, int]  # a row and a position; negative positions count from the last token
Arrow = tuple[Place, Place, str] | tuple[Place, Place, str, str]  # from, to, color, label
Point = tuple[float, float]


@checked
def token_diagram(
    tokens: Sequence[str],
    boxes: Mapping[Place, str],
    arrows: Sequence[Arrow] = (),
    *,
    rows: Sequence[str] = ("embed", "layer 0", "layer 1", "logits"),
    alt: str,
) -> Picture:
    """Draw which information moves from which token to which.

    Parameters
    ----------
    tokens : the text of each position; write "…" for tokens that are left out
    boxes : the label of the component at each (row, position), such as `{("layer 0", 1): "L0H1"}`
    arrows : (from, to, color) or (from, to, color, label), where both ends are (row, position)
        and the color is a key of `COLORS`: "Q", "K", "V" or "accent"
    rows : the names of the rows, from bottom to top
    alt : a sentence for readers who cannot see the picture

    Raises
    ------
    ValueError : for a row, a position or a color that does not exist, and for a short alt text

    Notes
    -----
    The picture is at most 688 pixels wide. Source: this book.

    Examples
    --------
    >>> token_diagram(
    ...     ["A", "B"], {("layer 0", 1): "L0H1"}, [(("embed", 0), ("layer 0", 1), "V", "token A")],
    ...     alt="L0H1 moves the token A to the second position").numbers
    ('arrow V, token A: embed 0 -> layer 0 1', 'box L0H1: layer 0 1')
    """
    lines = []
    for (start, i), (end, j), *words in arrows:
        ends = f"{start} {i % len(tokens)} -> {end} {j % len(tokens)}"
        lines.append(f"arrow {', '.join(words)}: {ends}")
    lines += [f"box {name}: {row} {i % len(tokens)}" for (row, i), name in boxes.items()]
    return replace(picture(drawing(tokens, boxes, arrows, rows), alt=alt), numbers=tuple(lines))


def drawing(
    tokens: Sequence[str], boxes: Mapping[Place, str], arrows: Sequence[Arrow], rows: Sequence[str]
) -> "Figure":
    """The matplotlib figure of a token diagram: positions are x, rows are y, both from 0."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    width, height = min(6.88, 0.95 + 0.66 * len(tokens)), 0.6 + 0.85 * len(rows)
    with rc_context():
        style()
        fig = Figure(figsize=(width, height))
        fig.set_layout_engine("none")
        ax = fig.add_axes((0.85 / width, 0.4 / height, 1 - 0.9 / width, 1 - 0.45 / height))
        ax.set(xlim=(-0.6, len(tokens) - 0.4), ylim=(-0.4, len(rows) - 0.6))
        ax.spines[["left", "bottom"]].set_visible(False)
        ax.tick_params(length=0)
        labels = [visible(t).replace("$", r"\$") for t in tokens]  # a dollar begins a formula
        ax.set_xticks(range(len(tokens)), labels, fontsize=13)
        ax.set_yticks(range(len(rows)), rows, fontsize=12)
        for i, token in enumerate(tokens):
            if token != "…":
                ax.annotate("", (i, len(rows) - 0.62), (i, -0.4), arrowprops=STREAM)
        for (row, i), name in boxes.items():
            frame = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": INK}
            place = point(row, i, tokens, rows)
            ax.text(*place, name, ha="center", va="center", fontsize=12, bbox=frame)
        for number, arrow in enumerate(arrows):
            draw_arrow(ax, arrow, tokens, rows, bend=0.1 + 0.12 * (number % 2))
    return fig


def point(row: str, i: int, tokens: Sequence[str], rows: Sequence[str]) -> Point:
    """The place of a row and a position in the drawing."""
    if row not in rows or not -len(tokens) <= i < len(tokens):
        raise ValueError(
            f"There is no place {(row, i)}. The rows are {', '.join(rows)}, and the positions are "
            f"0 to {len(tokens) - 1}."
        )
    return float(i % len(tokens)), float(list(rows).index(row))


def draw_arrow(
    ax: "Axes", arrow: Arrow, tokens: Sequence[str], rows: Sequence[str], bend: float
) -> None:
    """Draw one arrow between two places, with its label on a white ground at the middle."""
    (start, end, color), label = arrow[:3], arrow[3] if len(arrow) == 4 else ""
    if color not in COLORS:
        raise ValueError(f"There is no color {color!r}. The colors are {', '.join(COLORS)}.")
    a, b = point(*start, tokens, rows), point(*end, tokens, rows)
    bend = -bend if b[0] > a[0] else bend
    frames = {text.get_position(): text.get_bbox_patch() for text in ax.texts}
    line = {"color": COLORS[color], "linewidth": 2.2, "mutation_scale": 16}
    line |= {"patchA": frames.get(a), "patchB": frames.get(b)}
    arrow_between(ax, a, b, bend, zorder=4, **line)
    if label:
        label_on(ax, point_on_arrow(ax, a, b, bend, 0.5), label, COLORS[color], zorder=5)


def arrow_between(
    ax: "Axes", a: Point, b: Point, bend: float, *, zorder: float | int, **line: Any
) -> None:
    """Draw an arrow from one point to another, straight or bent to one side."""
    line |= {"arrowstyle": "-|>", "connectionstyle": f"arc3,rad={bend}", "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", b, a, arrowprops=line, zorder=zorder)


def point_on_arrow(ax: "Axes", a: Point, b: Point, bend: float, share: float) -> Point:
    """The point at a share of the curve that matplotlib draws for a bent arrow (`arc3`)."""
    start, end = ax.transData.transform([a, b])
    across = np.array([end[1] - start[1], start[0] - end[0]])
    control = (start + end) / 2 + bend * across
    on_curve = (1 - share) ** 2 * start + 2 * share * (1 - share) * control + share**2 * end
    return tuple(ax.transData.inverted().transform(on_curve))


def label_on(ax: "Axes", place: Point, words: str, color: str, *, zorder: int) -> None:
    """Write words on a white ground with a rim in the color of their arrow."""
    ground = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": color}
    ax.text(*place, words, ha="center", va="center", fontsize=11, bbox=ground, zorder=zorder)
