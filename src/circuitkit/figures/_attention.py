"""Attention patterns in circuitsvis's component, made deterministic, offline, printable and reachable by keyboard; and their
still half: a small heatmap for each head, a table of where each looks, one head large on paper."""

import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from circuitkit._contract import Integer, Numbers, Positive, must, place_of, public
from circuitkit.figures._live import bring_to_life
from circuitkit.figures._picture import (
    NEGATIVE,
    POSITIVE,
    SHOWN_DPI,
    check_alt,
    in_page,
    mark,
    signed,
    style,
    to_array,
    to_json,
    to_png,
)

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
        paths.append(
            f'<path fill="{colour}" fill-opacity="{abs(shade) / LEVELS:.2f}" d="{cells}"/>'
        )
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


def pattern_image(
    tokens: Sequence[str], pattern: np.ndarray, name: str, largest: float, causal: bool
) -> str:
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


DIGITS = 4


@dataclass(frozen=True, eq=False)
class Attention:
    """An attention view: what `attention` was given, `patterns` as `[head, dst, src]` and `first` as a number."""

    tokens: tuple[str, ...]
    patterns: np.ndarray
    names: tuple[str, ...]
    alt: str
    first: int
    largest: float

    def __repr__(self) -> str:
        lines = [
            f"  {name}: {mark(pattern)}"
            for name, pattern in zip(self.names, self.patterns, strict=True)
        ]
        return "\n".join(
            [f"Attention: {self.alt}", f"  tokens: {' '.join(map(visible, self.tokens))}", *lines]
        )

    def _causal(self) -> bool:
        return bool((np.triu(self.patterns, 1) == 0).all())

    def _props(self) -> str:
        return to_json({
            "causal": self._causal(),
            "first": self.first,
            "largest": self.largest,
            "names": self.names,
            "negative": NEGATIVE,
            "patterns": self.patterns.tolist(),
            "positive": POSITIVE,
            "tokens": [visible(token) for token in self.tokens],
        })  # fmt: skip

    def _repr_html_(self) -> str:
        data = self._props()
        name = "ck-" + hashlib.sha256(f"{data}{self.alt}".encode()).hexdigest()[:12]
        heads = "".join(
            f'<div class="ck-head" data-mark="{mark(pattern)}">{heatmap(pattern, self.largest, f"Pattern of {label}")}'
            f"<span>{html.escape(label)}</span></div>"
            for label, pattern in zip(self.names, self.patterns, strict=True)
        )
        shown = self.names[self.first]
        still = pattern_image(
            self.tokens, self.patterns[self.first], shown, self.largest, self._causal()
        )
        return (
            f'<figure class="ck-attention" id="{name}"><figcaption>{html.escape(self.alt)}</figcaption>'
            f'<div class="ck-heads" style="display:flex;flex-wrap:wrap;gap:0.5rem">{heads}</div>{still}<div class="ck-zoom"></div>'
            f'<details class="ck-table"><summary>The same as a table</summary>'
            f"{table(list(self.tokens), self.patterns, list(self.names))}</details>\n"
            f'<script type="application/json">{data}</script>\n</figure>'
        )

    def _ipython_display_(self) -> None:
        if not bring_to_life(self._repr_html_(), repr(self)):
            raise NotImplementedError  # IPython then stores what the page shows anywhere: text and HTML


def _fit(tokens: Sequence[str], patterns: Any, names: Sequence[str] | None) -> Any:
    values = to_array(patterns)
    shape = (1, *values.shape) if values.ndim == 2 else values.shape or (0,)
    faults = {
        "patterns [head, dst, src] or [dst, src] with as many destinations as sources, and at least one": len(
            shape
        )
        != 3
        or shape[-1] != shape[-2]
        or 0 in shape,
        f"{shape[-1]} tokens, one for every position (a common slip is to drop or add the first one)": len(
            tokens
        )
        != shape[-1],
        f"{shape[0]} names, each once": names is not None
        and not len(names) == len({*names}) == shape[0],
        "finite weights; pass the pattern after the softmax, not scores masked with -inf": not np.isfinite(
            values
        ).all(),
    }
    return (
        f"{'; '.join(text for text, wrong in faults.items() if wrong)} (patterns has shape {values.shape})"
        if any(faults.values())
        else True
    )


@public
@must(_fit)
def attention(
    tokens: Sequence[str],
    patterns: Numbers,
    names: Sequence[str] | None = None,
    *,
    alt: str,
    first: Integer | str = 0,
    largest: Positive | None = None,
) -> Attention:
    """A view of attention patterns: choose a head to see it large, point at a cell to read its weight.

    **Shapes**: `tokens` pos; `patterns` `[head, dst, src]` or `[dst, src]`, any sign. `alt` states the finding in a sentence.
    `first` is the head shown at the start, by name or number; `largest` the weight drawn in full colour: left out, 1, or the
    largest magnitude if that is more or any weight is negative. **Error**: rounded to 4 decimals.

    >>> attention(["a", "b"], [[1.0, 0.0], [0.5, 0.5]], ["L0H0"], alt="The second token looks at both equally")
    Attention: The second token looks at both equally
      tokens: a b
      L0H0: 4 values, largest 1, mean 0.5, mark 0.074
    """
    values = np.round(to_array(patterns), DIGITS) + 0.0
    values = values[None] if values.ndim == 2 else values
    names = (
        tuple(names)
        if names is not None
        else tuple(f"head {number}" for number in range(len(values)))
    )
    scale = float(np.abs(values).max())
    if largest is None:
        largest = max(scale, 1.0) if values.min() >= 0 else scale
    return Attention(
        tokens=tuple(tokens),
        patterns=values,
        names=names,
        alt=check_alt(alt),
        first=place_of(first, names),
        largest=float(largest) or 1.0,
    )
