"""A matplotlib figure as a picture with alt text, and the numbers behind it in words."""

import json
from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from circuitkit._contract import Figure, public

from ._mark import mark

DPI = 144
SHOWN_DPI = 100  # stored sharper than shown, for screens with fine pixels


@dataclass(frozen=True)
class Picture:
    """A finished picture.

    `png` are the bytes, `alt` the finding in words, `width` the shown width in pixels, `numbers` one line per drawn thing:
    what a test of the notebook compares, since pixels differ between machines.
    """

    png: bytes
    alt: str
    width: int
    numbers: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"Figure: {self.alt}", *(f"  {line}" for line in self.numbers)])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict, dict]:
        data = {"image/png": self.png, "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt, "width": self.width}}


@public
def show(fig: Figure, *, alt: str) -> None:
    """Display a matplotlib figure with alt text that states what it shows, and close it.

    Beside picture and alt text the output has a line of numbers for each thing drawn, so that a run that draws another is noticed.
    """
    from IPython.display import display

    display(picture(fig, alt=alt))


@public
def picture(fig: Figure, *, alt: str) -> Picture:
    """The same as `show`, returned instead of displayed."""
    return pictured(fig, alt)


def pictured(fig: Any, alt: str, colours: int = 255) -> Picture:
    """A figure's picture; the figure is closed."""
    import matplotlib.pyplot as plt

    made = Picture(to_png(fig, colours), check_alt(alt), round(fig.get_figwidth() * SHOWN_DPI), tuple(_numbers(fig)))
    plt.close(fig)
    return made


def check_alt(alt: str) -> str:
    """The alt text on one line; raises when it says too little to stand for the picture."""
    text = " ".join(alt.split()) if isinstance(alt, str) else ""
    if len(text.split()) < 4:
        raise ValueError(
            f"alt={alt!r} was given. A figure needs a sentence that states what it shows, because some readers hear "
            "it instead of seeing it. Write the finding, such as alt='Loss falls from 5.3 to 2.1 within 400 steps'."
        )
    return text


def to_png(fig: Any, colours: int = 255) -> bytes:
    """The figure as PNG bytes without a time stamp, in so many colours: a third of the bytes for the same picture."""
    from PIL import Image

    raw, small = BytesIO(), BytesIO()
    fig.savefig(raw, format="png", dpi=DPI, metadata={"Software": None})
    # Dithering would put noise on flat areas and make the file larger.
    flat = Image.open(raw).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    flat.save(small, format="PNG", optimize=True)
    return small.getvalue()


def in_page(png: bytes) -> str:
    """PNG bytes as the source of an `<img>`."""
    return "data:image/png;base64," + b64encode(png).decode()


def to_json(data: Any) -> str:
    """Data for a `<script>` of a page, the same text on every machine."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).replace("<", "\\u003c")


def _numbers(fig: Any, most: int = 12) -> list[str]:
    """One line for each thing drawn from data; beyond `most`, the rest of an axes is pooled."""
    lines = []
    panels = [ax for ax in fig.axes if ax.get_label() != "<colorbar>"]
    for number, ax in enumerate(panels):
        drawn = list(_drawn(ax))
        if len(drawn) > most:
            drawn = drawn[: most - 1] + [
                (f"{len(drawn) - most + 1} more", np.concatenate([v for _, v in drawn[most - 1 :]]))
            ]
        place = f"{number + 1}: " if len(panels) > 1 else ""
        lines += [f"{place}{name}: {mark(values)}" for name, values in drawn]
    return lines


def _drawn(ax: Any) -> Any:
    """Name and flat values of every line, bar, image and point set of an axes, in drawing order."""
    for line in ax.lines:
        across, up = np.asarray(line.get_xydata(), dtype=float).T
        yield _name("line", line), up
        if not (np.diff(across) > 0).all():  # a path in the plane, not a curve over an axis
            yield f"{_name('line', line)}, across", across
    bars = [patch for patch in ax.patches if hasattr(patch, "get_height")]
    if bars:
        yield "bars", np.array([[bar.get_x(), bar.get_width(), bar.get_height()] for bar in bars], dtype=float).ravel()
    for image in ax.images:
        yield _name("image", image), np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan).ravel()
    for group in ax.collections:
        values = group.get_array()
        points = np.asarray(group.get_offsets(), dtype=float) if values is None else values
        yield (
            _name("points" if values is None else "cells", group),
            np.ma.filled(np.ma.asarray(points, dtype=float), np.nan).ravel(),
        )


def _name(kind: str, artist: Any) -> str:
    label = str(artist.get_label())
    return kind if label.startswith("_") or not label else f"{kind} '{label}'"
