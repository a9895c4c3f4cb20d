"""The large still picture of one head: what paper and GitHub's preview show in place of the live view."""

import html
from collections.abc import Sequence

import numpy as np

from ._picture import SHOWN_DPI, in_page, to_png
from ._still import visible
from ._style import signed, style

SIDE = 4.6  # inches
HIDDEN = "#EDEDED"  # where a causal head cannot look; the live view has the same grey


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
