"""matplotlib figures as pictures with an alt text, in one style.

Next to each picture a notebook stores one line for each thing drawn, with a fingerprint of its
numbers. A test of the notebook compares these lines, because pixels differ between machines.
"""

import json
import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from circuitkit.checks import checked, require_not_negative

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Tensor | np.ndarray | Sequence | float
# Line colours, in order. Each has a contrast of at least 3 to 1 with the background.
PALETTE = ("#0072B2", "#D55E00", "#00805E", "#A6558A", "#8A6D00", "#4D4D4D")
POSITIVE, NEGATIVE = "#0072B2", "#D55E00"
SIGNED = ("#8F3B00", NEGATIVE, "#FFFFFF", POSITIVE, "#00436B")
STILL = "CIRCUITKIT_STILL"
"""If this environment variable is set, notebooks store still pictures, the same on every run."""
DPI, SHOWN_DPI = 144, 100  # stored sharper than shown, for screens with fine pixels
MOST_LINES = 12  # in the description of one panel


def to_array(values: Numbers) -> np.ndarray:
    """A tensor, an array or a nested list as a float64 array on the CPU."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"Real numbers are needed for a figure, not {array.dtype} values.")
    return array.astype(np.float64)


def mark(values: Numbers) -> str:
    r"""Describe values by their number, the largest magnitude, and two ratios as a fingerprint.

    With $m = \max_i |x_i|$, the ratios are the means of $x_i / m$ and of
    $\cos(i \sqrt 2)\, x_i / m$, to three decimals. They change when a value or the order changes.

    Examples
    --------
    >>> mark([0.0, 0.5, 1.0])
    '3 values, largest 1, mean 0.5, mark -0.291'
    """
    flat = to_array(values).ravel()
    finite = flat[np.isfinite(flat)]
    if flat.size == 0:
        return "0 values"
    if finite.size < flat.size:
        n_others = flat.size - finite.size
        return f"{flat.size} values, {n_others} not finite; the others: {mark(finite)}"
    largest = float(np.abs(flat).max())
    if largest == 0:
        return f"{flat.size} values, all 0"
    share = flat / largest
    weighted = np.cos(np.arange(flat.size) * math.sqrt(2)) * share
    # Rounded twice: the last bit must not decide how a number such as 0.5215 is rounded.
    shown = f"{float(f'{largest:.6g}'):.3g}"
    # + 0.0 turns a negative zero into zero
    mean, fingerprint = (round(float(np.mean(x)), 3) + 0.0 for x in (share, weighted))
    return f"{flat.size} values, largest {shown}, mean {mean:g}, mark {fingerprint:g}"


def style() -> tuple[str, ...]:
    """Set matplotlib's defaults for the book and return the line colours.

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> style()[0]
    '#0072B2'
    """
    import matplotlib
    from cycler import cycler

    path = Path(__file__).with_name("circuitkit.mplstyle")
    settings = matplotlib.rc_params_from_file(path, use_default_template=False)
    matplotlib.rcParams.update({**settings, "axes.prop_cycle": cycler(color=PALETTE)})
    return PALETTE


@checked
def signed(values: Numbers, limit: float | None = None) -> dict[str, Any]:
    """Return colour arguments for values of either sign: orange below zero, white at it, blue above.

    Parameters
    ----------
    values : a tensor, an array or a list of finite numbers
    limit : the magnitude drawn in full colour, so that two panels can share a scale; left out, the
        largest one

    Returns
    -------
    `cmap`, `vmin` and `vmax`, for `ax.imshow(x, **signed(x))`.

    Raises
    ------
    ValueError : for no values, for NaN or infinite ones, and for a negative limit

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> scale = signed([-2.0, 1.0]); scale["vmin"], scale["vmax"]
    (-2.0, 2.0)
    """
    from matplotlib.colors import LinearSegmentedColormap

    if limit is not None:
        require_not_negative(limit=limit)
    array = to_array(values)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("A colour scale needs finite values, and here are none, NaN or infinity.")
    if limit is None:
        limit = float(np.abs(array).max()) or 1.0
    colour_map = LinearSegmentedColormap.from_list("circuitkit_signed", SIGNED)
    return {"cmap": colour_map, "vmin": -limit, "vmax": limit}


@dataclass(frozen=True)
class Picture:
    """A finished picture.

    `png` are its bytes, `alt` says what it shows, `width` is its width in pixels on a page, and
    `numbers` describes each thing drawn.
    """

    png: bytes
    alt: str
    width: int
    numbers: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"Figure: {self.alt}", *(f"  {line}" for line in self.numbers)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        data = {"image/png": self.png, "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt, "width": self.width}}


@checked
def show(fig: "Figure", *, alt: str) -> None:
    """Display a matplotlib figure with an alt text, and close it.

    Parameters
    ----------
    fig : the figure
    alt : a sentence for readers who cannot see the picture: the kind of chart, its axes, and the
        values that matter

    Raises
    ------
    ValueError : for an alt text of fewer than four words
    TypeError : for anything else than a figure

    Notes
    -----
    Source: this book.
    """
    from IPython.display import display

    display(picture(fig, alt=alt))


@checked
def picture(fig: "Figure", *, alt: str) -> Picture:
    """Turn a matplotlib figure into a picture with an alt text, and close it, as `show` does.

    Parameters
    ----------
    fig : the figure
    alt : a sentence for readers who cannot see the picture

    Raises
    ------
    ValueError : for an alt text of fewer than four words
    TypeError : for anything else than a figure

    Notes
    -----
    Source: this book.
    """
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    if not isinstance(fig, Figure):
        raise TypeError(f"A matplotlib figure is needed, not {fig!r}.")
    width = round(fig.get_figwidth() * SHOWN_DPI)
    made = Picture(to_png(fig, colours=255), check_alt(alt), width, tuple(described(fig)))
    plt.close(fig)
    return made


def check_alt(alt: str) -> str:
    """The alt text on one line; one of fewer than four words is refused."""
    text = " ".join(alt.split()) if isinstance(alt, str) else ""
    if text.count(" ") < 3:
        raise ValueError(
            f"alt={alt!r} does not say what the figure shows. Write a sentence for readers who "
            "cannot see it, such as alt='The loss falls from 5.3 to 2.1 within 400 steps'."
        )
    return text


def to_png(fig: "Figure", colours: int) -> bytes:
    """The figure as PNG bytes. Few colours make the file a third as large."""
    from PIL import Image

    raw, small = BytesIO(), BytesIO()
    fast = {"compress_level": 1}  # it is compressed well below
    # without the name of the program, so that the bytes are the same each time
    fig.savefig(raw, format="png", dpi=DPI, metadata={"Software": None}, pil_kwargs=fast)
    # Dithering would put noise on flat areas and make the file larger.
    image = Image.open(raw).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    image.save(small, format="PNG", optimize=True)
    return small.getvalue()


def in_page(png: bytes) -> str:
    """PNG bytes as the source of an `<img>`."""
    return "data:image/png;base64," + b64encode(png).decode()


def to_json(data: Any) -> str:
    """Data for a `<script>` of a page, which no text in it can close."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).replace("<", "\\u003c")


def described(fig: "Figure") -> list[str]:
    """One line for each thing drawn. In a panel with many, the last line is about all the rest."""
    lines = []
    panels = [ax for ax in fig.axes if ax.get_label() != "<colorbar>"]
    for number, ax in enumerate(panels, start=1):
        things = list(drawn_things(ax))
        if len(things) > MOST_LINES:
            rest = things[MOST_LINES - 1 :]
            pooled = np.concatenate([values for _, values in rest])
            things = [*things[: MOST_LINES - 1], (f"{len(rest)} more", pooled)]
        place = f"{number}: " if len(panels) > 1 else ""
        lines += [f"{place}{name}: {mark(values)}" for name, values in things]
    return lines


def drawn_things(ax: "Axes") -> Iterator[tuple[str, np.ndarray]]:
    """The name and the values of every line, bar, image and point set of a panel."""
    for line in ax.lines:
        across, up = np.asarray(line.get_xydata(), dtype=float).T
        yield name_of("line", line), up
        if not (np.diff(across) > 0).all():  # a path in the plane, not a curve over an axis
            yield f"{name_of('line', line)}, across", across
    bars: list[Any] = [patch for patch in ax.patches if hasattr(patch, "get_height")]
    if bars:
        sizes = [[bar.get_x(), bar.get_width(), bar.get_height()] for bar in bars]
        yield "bars", np.array(sizes, dtype=float).ravel()
    for image in ax.images:
        yield name_of("image", image), unmasked(image.get_array())
    for group in ax.collections:
        colours = group.get_array()
        if colours is None:
            yield name_of("points", group), unmasked(group.get_offsets())
        else:
            yield name_of("cells", group), unmasked(colours)


def unmasked(values: Any) -> np.ndarray:
    """Flat values, with NaN where they are masked."""
    return np.ma.filled(np.ma.asarray(values, dtype=float), np.nan).ravel()


def name_of(kind: str, artist: Any) -> str:
    """The kind of a drawn thing, and its label if it has one."""
    label = str(artist.get_label())
    return kind if label.startswith("_") or not label else f"{kind} '{label}'"
