"""The still half of an attention view: a small heatmap for each head, a table of where each looks, one head large on paper."""

import html
from collections.abc import Sequence

import numpy as np

from ._picture import SHOWN_DPI, in_page, to_png
from ._style import NEGATIVE, POSITIVE, signed, style

SIDE = 4.6  # inches
HIDDEN = "#EDEDED"  # where a causal head cannot look; the live view has the same grey

LEVELS = 12  # shades in the heatmap; the table and the live view have the numbers


def visible(token: str) -> str:
    r"""A token with its blanks made visible.

    >>> visible(" the"), visible("\n")
    ('·the', '↵')
    """
    return token.replace(" ", "·").replace("\n", "↵").replace("\t", "→") or "∅"


def heatmap(pattern: np.ndarray, largest: float, title: str) -> str:
    """One head as an SVG: rows are destinations, columns sources, opacity the weight. One path for each shade."""
    size = len(pattern)
    shades = np.rint(np.clip(pattern / largest, -1, 1) * LEVELS).astype(int)
    paths = []
    for shade in np.unique(shades[shades != 0]):
        cells = "".join(f"M{x} {y}h1v1h-1z" for y, x in np.argwhere(shades == shade))
        colour = POSITIVE if shade > 0 else NEGATIVE
        paths.append(f'<path fill="{colour}" fill-opacity="{abs(shade) / LEVELS:.2f}" d="{cells}"/>')
    return (
        f'<svg class="ck-map" viewBox="0 0 {size} {size}" width="96" height="96" role="img" '
        f'aria-label="{html.escape(title)}" shape-rendering="crispEdges">'
        f'<rect width="{size}" height="{size}" fill="none" stroke="currentColor" stroke-width="{size / 48:.2f}"/>'
        f"{''.join(paths)}</svg>"
    )


def largest_source(row: np.ndarray) -> int:
    """The source with the largest magnitude; among near ties (within 0.01 of it) the first, on every machine."""
    magnitude = np.abs(row)
    return int(np.argmax(magnitude >= magnitude.max() - 0.01))


def table(tokens: list[str], patterns: np.ndarray, names: list[str]) -> str:
    """A row for each destination token and, for each head, the source it weighs most with that weight."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    rows = []
    for position, token in enumerate(tokens):
        cells = []
        for pattern in patterns:
            source = largest_source(pattern[position])
            weight = pattern[position, source] + 0.0
            cells.append(f"<td>{html.escape(visible(tokens[source]))} ({source}) {weight:.2f}</td>")
        rows.append(
            f'<tr><th scope="row">{html.escape(visible(token))} ({position})</th>{"".join(cells)}</tr>',
        )
    return (
        "<table><caption>For each destination token: the source each head weighs most, its position, and the weight"
        f'</caption><thead><tr><th scope="col">destination</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def pattern_image(tokens: Sequence[str], pattern: np.ndarray, name: str, largest: float, causal: bool) -> str:
    """One head as an `<img>` that carries its own PNG: destinations down, sources across, tokens on both axes."""
    import matplotlib
    from matplotlib.figure import Figure

    size = len(pattern)
    labels = [visible(token).replace("$", r"\$") for token in tokens]
    with matplotlib.rc_context():
        style()
        fig = Figure(figsize=(SIDE, SIDE))
        ax = fig.add_subplot()
        later = np.triu(np.ones((size, size), dtype=bool), 1) & causal
        ax.set_facecolor(HIDDEN)
        ax.imshow(np.ma.masked_array(pattern, later), **signed(pattern, largest))
        letters = min(10.0, 220 / size)
        ax.set_xticks(range(size), labels, rotation=90, fontsize=letters)
        ax.set_yticks(range(size), labels, fontsize=letters)
        ax.set(xlabel="source", ylabel="destination", title=name.replace("$", r"\$"))
        png = to_png(fig, colours=64)
    width = round(SIDE * SHOWN_DPI)
    return (
        f'<img class="ck-still dark-light" src="{in_page(png)}" '
        f'alt="Pattern of {html.escape(name)}, as in the table below" width="{width}" height="{width}">'
    )
