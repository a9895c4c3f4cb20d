"""Attention drawn into the text that was read, for the gallery of chapter 3."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.patches import FancyArrowPatch, Rectangle

from circuitkit.figures import COLORS, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 48  # letters of a line, so that a phone can show them
LINE, CHARACTER = 0.42, 0.095  # inches
SIZE = 11  # points
Weight = Sequence[float]  # destination, source, weight


def places_of(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return line and column of each token; a token that does not fit begins a new line, indented."""
    places, line, column = [], 0, 0
    for token in tokens:
        if column + len(token.rstrip("\n")) > COLUMNS:
            line, column = line + 1, 2
        places.append((line, column))
        if token.endswith("\n"):
            line, column = line + 1, 0
        else:
            column += len(token)
            if "\n" in token:  # a line break and the spaces behind it are one token
                before, _, after = token.rpartition("\n")
                line, column = line + 1, len(after)
    return places


def attention_in_text(
    tokens: Sequence[str], attention: Sequence[Weight], *, least: float = 0.3
) -> "Figure":
    """Draw a text with a curve from each token to the token that it attends to.

    Parameters
    ----------
    tokens : the tokens of the text; the first, which begins every text, is not drawn
    attention : rows of a destination, a source and a weight
    least : smaller weights are not drawn

    Returns
    -------
    A matplotlib figure. A source has a grey ground, and a curve is darker if its weight is larger.

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> fig = attention_in_text(["start", "a", " b", " a"], [[3, 2, 0.9]])
    >>> len(fig.axes[0].patches)
    2
    """
    import matplotlib.pyplot as plt

    style()
    words = ["", *tokens[1:]]
    places = places_of(words)
    height = LINE * (places[-1][0] + 1.6)
    fig = plt.figure(figsize=(CHARACTER * (COLUMNS + 1), height))
    fig.set_layout_engine("none")
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(-0.5, COLUMNS + 0.5), ylim=(-height / LINE + 0.7, 0.9))
    ax.axis("off")
    drawn = [row for row in attention if row[2] >= least]
    for source in sorted({int(row[1]) for row in drawn}):
        x, y = corner(words, places, source)
        shape = Rectangle((x, y - 0.3), width(words[source]), 0.6, color="#E4E4EA", zorder=0)
        ax.add_patch(shape)
    for word, (line, column) in zip(words, places, strict=True):
        for i, letter in enumerate(word.split("\n")[0]):
            ax.text(
                column + i + 0.5,
                -line,
                letter,
                family="monospace",
                fontsize=SIZE,
                ha="center",
                va="center",
            )
    for row in drawn:
        destination, source, weight = int(row[0]), int(row[1]), float(row[2])
        is_below = places[destination][0] > places[source][0]
        ax.add_patch(
            FancyArrowPatch(
                middle(words, places, destination),
                middle(words, places, source, below=is_below),
                connectionstyle="arc3,rad=0.25",
                arrowstyle="-|>",
                mutation_scale=9,
                color=COLORS["accent"],
                alpha=0.25 + 0.75 * weight,
                linewidth=0.6 + 1.2 * weight,
                shrinkA=0,
                shrinkB=0,
            )
        )
    return fig


def width(word: str) -> float:
    """The letters of a word without the space before it; a line break has the width of one letter."""
    return float(len(word.strip()) or 1)


def corner(words: Sequence[str], places: Sequence[tuple[int, int]], i: int) -> tuple[float, float]:
    """The left end of a word, behind the space that begins it."""
    line, column = places[i]
    word = words[i].split("\n")[0]
    return column + float(len(word) - len(word.lstrip())), -float(line)


def middle(
    words: Sequence[str], places: Sequence[tuple[int, int]], i: int, *, below: bool = False
) -> tuple[float, float]:
    """The place above or below the middle of a word where a curve begins or ends."""
    x, y = corner(words, places, i)
    return x + width(words[i]) / 2, y + (-0.32 if below else 0.32)
