"""Attention patterns: a small heatmap of each head, one head large, and a table in words.

In the book and in a running notebook the view is live: circuitsvis draws the large head, and readers
choose the head. Everywhere else, and without scripts, the still picture remains.
"""

import base64
import gzip
import hashlib
import html
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from circuitkit.checks import checked
from circuitkit.figures.pictures import (
    NEGATIVE,
    POSITIVE,
    SHOWN_DPI,
    STILL,
    Numbers,
    check_alt,
    in_page,
    mark,
    signed,
    style,
    to_array,
    to_json,
    to_png,
)

SIDE = 4.6  # inches, of the large picture
HIDDEN = "#EDEDED"  # where a causal head cannot look
SHADES = 12  # of a heatmap; the table has the numbers
DIGITS = 4  # of the stored weights, so that two processors store the same


@dataclass(frozen=True, eq=False)
class Attention:
    """An attention view: `patterns` `[head, dst, src]`; `first` is the number of the large head."""

    tokens: tuple[str, ...]
    patterns: np.ndarray
    names: tuple[str, ...]
    alt: str
    first: int

    @property
    def largest(self) -> float:
        """The weight in full colour: 1, or the largest if one is more than 1 or one is negative."""
        magnitude = float(np.abs(self.patterns).max()) or 1.0
        return magnitude if self.patterns.min() < 0 else max(magnitude, 1.0)

    def __repr__(self) -> str:
        lines = [f"Attention: {self.alt}", f"  tokens: {' '.join(map(visible, self.tokens))}"]
        for name, pattern in zip(self.names, self.patterns, strict=True):
            lines.append(f"  {name}: {mark(pattern)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        is_causal = bool((np.triu(self.patterns, 1) == 0).all())
        data = to_json(
            {
                "causal": is_causal,
                "first": self.first,
                "largest": self.largest,
                "names": self.names,
                "negative": NEGATIVE,
                "patterns": self.patterns.tolist(),
                "positive": POSITIVE,
                "tokens": [visible(token) for token in self.tokens],
            }
        )
        identity = "ck-" + hashlib.sha256(f"{data}{self.alt}".encode()).hexdigest()[:12]
        heads = ""
        for name, pattern in zip(self.names, self.patterns, strict=True):
            small = heatmap(pattern, self.largest, f"Pattern of {name}")
            title = f"<span>{html.escape(name)}</span>"
            heads += f'<div class="ck-head" data-mark="{mark(pattern)}">{small}{title}</div>'
        large = large_image(self, is_causal)
        return (
            f'<figure class="ck-attention" id="{identity}">'
            f"<figcaption>{html.escape(self.alt)}</figcaption>"
            f'<div class="ck-heads" style="display:flex;flex-wrap:wrap;gap:0.5rem">{heads}</div>'
            f'{large}<div class="ck-zoom"></div>'
            f'<details class="ck-table"><summary>The same as a table</summary>'
            f"{table(list(self.tokens), self.patterns, list(self.names))}</details>\n"
            f'<script type="application/json">{data}</script>\n{live_part()}</figure>'
        )


@checked
def attention(
    tokens: Sequence[str],
    patterns: Numbers,
    names: Sequence[str],
    *,
    alt: str,
    first: str | None = None,
) -> Attention:
    """Show attention patterns.

    Parameters
    ----------
    tokens : the text of each position
    patterns : weights `[head, dst, src]`, of any sign
    names : one for each head
    alt : a sentence for readers who cannot see the picture
    first : the name of the head that is shown large; by default the first one

    Raises
    ------
    ValueError : for patterns of other shapes, for NaN or infinite weights, and for another number
        of tokens or names

    Notes
    -----
    Weights are rounded to 4 decimals. The weight in full colour is 1, or the largest magnitude if
    that is more or if a weight is negative. A notebook shows a live view if circuitsvis is
    installed (`pip install "circuitkit-book[live]"`), and else a still picture. Every output with a
    live view has circuitsvis's script in it, 0.5 MB, so that it asks no other host and works when
    the notebook is opened again. With the environment variable `CIRCUITKIT_STILL=1` notebooks
    store the still picture only. Source: this book; the live view is circuitsvis's.

    Examples
    --------
    >>> pattern = [[[1.0, 0.0], [0.5, 0.5]]]
    >>> attention(["a", "b"], pattern, ["L0H0"], alt="The second token looks at both")
    Attention: The second token looks at both
      tokens: a b
      L0H0: 4 values, largest 1, mean 0.5, mark 0.074
    """
    weights = np.round(to_array(patterns), DIGITS) + 0.0  # [head, dst, src], no negative zeros
    check_sizes(tokens, weights, names)
    first = names[0] if first is None else first
    if first not in names:
        raise ValueError(f"There is no head {first!r}. The heads are {', '.join(names)}.")
    number = list(names).index(first)
    return Attention(tuple(tokens), weights, tuple(names), check_alt(alt), number)


def check_sizes(tokens: Sequence[str], weights: np.ndarray, names: Sequence[str]) -> None:
    """Raise a `ValueError` where tokens, weights and names do not fit."""
    shape = weights.shape
    if weights.ndim != 3 or shape[1] != shape[2] or 0 in shape:
        raise ValueError(f"Patterns are [head, dst, src]; these have the shape {shape}.")
    if len(tokens) != shape[1]:
        raise ValueError(
            f"There are {len(tokens)} tokens and {shape[1]} positions. Give one token for each "
            "position, the first token included."
        )
    if len(set(names)) != shape[0] or len(names) != shape[0]:
        raise ValueError(f"Each of the {shape[0]} heads needs a name of its own, not {names!r}.")
    if not np.isfinite(weights).all():
        raise ValueError(
            "The weights are NaN or infinite. Give the pattern after the softmax, not the masked "
            "scores before it."
        )


def live_part() -> str:
    """What makes a view live in a notebook; "" if it must stay still, or circuitsvis is missing."""
    found = find_spec("circuitsvis")
    script = Path(found.origin or "").with_name("dist") / "cdn/iife.js" if found else Path()
    if os.environ.get(STILL) or not script.is_file():
        return ""
    style, code = (Path(__file__).with_name(f"attention.{end}") for end in ("css", "js"))
    return (
        f"<style>{style.read_text('utf-8')}</style>\n"
        f'<script type="text/plain" class="ck-packed">{packed(script)}</script>\n'
        f"<script>{code.read_text('utf-8')}</script>\n"
    )


@cache
def packed(script: Path) -> str:
    """A file, compressed, as text: outputs do not share it, because Colab shows each by itself."""
    return base64.b64encode(gzip.compress(script.read_bytes(), mtime=0)).decode()


def visible(token: str) -> str:
    r"""A token with its blanks made visible.

    >>> visible(" the"), visible("\n")
    ('·the', '↵')
    """
    return token.replace(" ", "·").replace("\n", "↵").replace("\t", "→") or "∅"


def heatmap(pattern: np.ndarray, largest: float, title: str) -> str:
    """One head `[dst, src]` as an SVG: rows are destinations; one path for all cells of a shade."""
    size = len(pattern)
    paths = ""
    for share, cells in shades(pattern / largest, SHADES):
        colour = POSITIVE if share > 0 else NEGATIVE
        paths += f'<path fill="{colour}" fill-opacity="{abs(share):.2f}" d="{cells}"/>'
    return (
        f'<svg class="ck-map" viewBox="0 0 {size} {size}" width="96" height="96" role="img" '
        f'aria-label="{html.escape(title)}" shape-rendering="crispEdges">'
        f'<rect width="{size}" height="{size}" fill="none" stroke="currentColor" '
        f'stroke-width="{size / 48:.2f}"/>{paths}</svg>'
    )


def shades(values: np.ndarray, n_shades: int) -> Iterator[tuple[float, str]]:
    """Each shade, between -1 and 1, and the outline of all cells `[row, column]` that have it.

    Values between -1 and 1 are rounded to so many shades of each color; 0 and NaN have none.
    """
    steps = np.rint(np.clip(values, -1, 1) * n_shades)
    for step in np.unique(steps[np.isfinite(steps) & (steps != 0)]):
        cells = np.argwhere(steps == step)
        yield float(step / n_shades), "".join(f"M{x} {y}h1v1h-1z" for y, x in cells)


def table(tokens: list[str], patterns: np.ndarray, names: list[str]) -> str:
    """A row for each destination token: the source that each head attends to most, with its weight."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    rows = ""
    for position, token in enumerate(tokens):
        rows += f'<tr><th scope="row">{html.escape(visible(token))} ({position})</th>'
        for pattern in patterns:
            source = largest_source(pattern[position])
            weight = pattern[position, source] + 0.0
            rows += f"<td>{html.escape(visible(tokens[source]))} ({source}) {weight:.2f}</td>"
        rows += "</tr>"
    return (
        "<table><caption>For each destination token: the source each head weighs most, its "
        "position, and the weight</caption><thead><tr>"
        f'<th scope="col">destination</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def largest_source(row: np.ndarray) -> int:
    """The source with the largest magnitude; of those within 0.01 of it, the first."""
    magnitude = np.abs(row)
    return int(np.argmax(magnitude >= magnitude.max() - 0.01))


def large_image(view: Attention, is_causal: bool) -> str:
    """The first head as an `<img>`: destinations down, sources across, tokens on both axes."""
    import matplotlib
    from matplotlib.figure import Figure

    name, pattern, size = view.names[view.first], view.patterns[view.first], len(view.tokens)
    # a dollar would begin a formula
    labels = [visible(token).replace("$", r"\$") for token in view.tokens]
    later = np.triu(np.ones((size, size), dtype=bool), 1) & is_causal
    with matplotlib.rc_context():
        style()
        fig = Figure(figsize=(SIDE, SIDE))
        ax = fig.add_subplot()
        ax.set_facecolor(HIDDEN)
        ax.imshow(np.ma.masked_array(pattern, later), **signed(pattern, view.largest))
        fontsize = min(10.0, 220 / size)
        ax.set_xticks(range(size), labels, rotation=90, fontsize=fontsize)
        ax.set_yticks(range(size), labels, fontsize=fontsize)
        ax.set(xlabel="source", ylabel="destination", title=name.replace("$", r"\$"))
        png = to_png(fig, colours=64)
    width = round(SIDE * SHOWN_DPI)
    return (
        f'<img class="ck-still dark-light" src="{in_page(png)}" alt="Pattern of '
        f'{html.escape(name)}, as in the table below" width="{width}" height="{width}">'
    )
