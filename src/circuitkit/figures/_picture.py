"""A matplotlib figure as a picture with alt text, its numbers in words and its fingerprint; in one style, and with a slider."""

import hashlib
import html
import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from circuitkit._contract import Figure, Numbers, Positive, must, public


def to_array(values: object) -> np.ndarray:
    """A tensor, array or nested list as a float64 array on the CPU."""
    detach = getattr(values, "detach", None)
    if detach is not None:
        values = detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


@public
def mark(values: Numbers) -> str:
    r"""The size, the largest magnitude, and two ratios that change when any value or their order does.

    With $m = \max_i |x_i|$, the mean of $x_i / m$ and of $\cos(i \sqrt 2)\, x_i / m$, to three decimals; another processor's
    rounding alters a digit about once in ten thousand figures. **Shapes**: any; read in C order.

    >>> mark([0.0, 0.5, 1.0])
    '3 values, largest 1, mean 0.5, mark -0.291'
    """
    flat = to_array(values).ravel()
    if flat.size == 0:
        return "0 values"
    if not np.isfinite(flat).all():
        kept = flat[np.isfinite(flat)]
        return f"{flat.size} values, {flat.size - kept.size} not finite; the others: {mark(kept)}"
    largest = float(np.abs(flat).max())
    if largest == 0:
        return f"{flat.size} values, all 0"
    weights = np.cos(np.arange(flat.size) * math.sqrt(2))
    return f"{flat.size} values, largest {_digits(largest)}, mean {_short(flat / largest)}, " + (
        f"mark {_short(weights * flat / largest)}"
    )


def _digits(value: float) -> str:
    """Three digits, counted from six: a last bit does not decide on which side of an edge a number such as 0.5215 falls."""
    return f"{float(f'{value:.6g}'):.3g}"


def _short(values: np.ndarray) -> str:
    """The mean to three decimals, without a negative zero."""
    return f"{round(float(np.mean(values)), 3) + 0.0:g}"


#: Line colours, in order. Each has a contrast of at least 3 to 1 with the background.
PALETTE = ("#0072B2", "#D55E00", "#00805E", "#A6558A", "#8A6D00", "#4D4D4D")

POSITIVE, NEGATIVE = "#0072B2", "#D55E00"
BACKGROUND = "#FFFFFF"
_SIGNED = ("#8F3B00", NEGATIVE, BACKGROUND, POSITIVE, "#00436B")
_UNSIGNED = (BACKGROUND, "#7FB8D8", POSITIVE, "#00304D")


def style() -> tuple[str, ...]:
    """Set matplotlib's defaults for the book and return the line colours.

    >>> style()[0]
    '#0072B2'
    """
    import matplotlib
    from cycler import cycler

    look = matplotlib.rc_params_from_file(
        Path(__file__).with_name("circuitkit.mplstyle"), use_default_template=False
    )
    matplotlib.rcParams.update({**look, "axes.prop_cycle": cycler(color=PALETTE)})
    return PALETTE


def _is_finite(values: object) -> Any:
    array = to_array(values)
    return (
        array.size > 0 and bool(np.isfinite(array).all())
    ) or "finite numbers, because a colour is chosen for each"


@public
@must(_is_finite)
def signed(values: Numbers, limit: Positive | None = None) -> dict[str, Any]:
    """Colour arguments for values of either sign: orange below zero, the background at zero, blue above.

    Use as `ax.imshow(x, **signed(x))`. `limit` overrides the largest magnitude, so that two panels share one scale.

    >>> scale = signed([-2.0, 1.0]); scale["vmin"], scale["vmax"]
    (-2.0, 2.0)
    """
    largest = _largest(values, limit)
    return {"cmap": _ramp("circuitkit_signed", _SIGNED), "vmin": -largest, "vmax": largest}


_below = "values that are 0 or more, because its scale starts at 0 and would hide a sign. Use signed(values) instead"


@public
@must(_is_finite)
@must(lambda values: (to_array(values) >= 0).all() or _below)
def unsigned(values: Numbers, limit: Positive | None = None) -> dict[str, Any]:
    """Colour arguments for values that are never negative: the background at zero, dark blue at the largest.

    >>> scale = unsigned([0.0, 3.0]); scale["vmin"], scale["vmax"]
    (0.0, 3.0)
    """
    return {
        "cmap": _ramp("circuitkit_unsigned", _UNSIGNED),
        "vmin": 0.0,
        "vmax": _largest(values, limit),
    }


def _largest(values: object, limit: float | int | None) -> float:
    largest = float(abs(to_array(values)).max()) if limit is None else float(limit)
    return largest or 1.0


def _ramp(name: str, colours: tuple[str, ...]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(name, colours)


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

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict, dict]:
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

    made = Picture(
        to_png(fig, colours),
        check_alt(alt),
        round(fig.get_figwidth() * SHOWN_DPI),
        tuple(_numbers(fig)),
    )
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
        yield (
            "bars",
            np.array(
                [[bar.get_x(), bar.get_width(), bar.get_height()] for bar in bars], dtype=float
            ).ravel(),
        )
    for image in ax.images:
        yield (
            _name("image", image),
            np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan).ravel(),
        )
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


@dataclass(frozen=True)
class Frames:
    """Pictures along an axis: one for each of `steps`, `label` what a step is ("training step")."""

    steps: tuple[int | float | str, ...]
    pictures: tuple[Picture, ...]
    label: str

    def __repr__(self) -> str:
        return "\n".join(
            f"{self.label} {step}: {picture!r}"
            for step, picture in zip(self.steps, self.pictures, strict=True)
        )

    def _repr_html_(self) -> str:
        last = self.pictures[-1]
        shown = [
            # The last picture is in the page already; the script takes its source from there.
            {
                "alt": picture.alt,
                "src": "" if picture is last else in_page(picture.png),
                "step": str(step),
            }
            for step, picture in zip(self.steps, self.pictures, strict=True)
        ]
        data = to_json(shown)
        name = "ck-" + hashlib.sha256(data.encode()).hexdigest()[:12]
        words = "".join(
            f"<li>{html.escape(f'{self.label} {step}: {picture.alt}')}"
            f"<!-- {html.escape('; '.join(picture.numbers))} --></li>"
            for step, picture in zip(self.steps, self.pictures, strict=True)
        )
        return (
            f'<figure class="ck-frames" id="{name}" data-label="{html.escape(self.label)}">'
            f'<img class="dark-light" src="{in_page(last.png)}" alt="{html.escape(last.alt)}" width="{last.width}">'
            f'<div class="ck-slider"></div>'
            f"<details><summary>Every step in words</summary><ul>{words}</ul></details>\n"
            f'<script type="application/json">{data}</script>\n'
            f'<script>{files("circuitkit.figures").joinpath("frames.js").read_text("utf-8")}circuitkitFrames("{name}");</script>'
            f"</figure>"
        )


_still = "two steps or more, because one picture does not move. Use show(fig, alt=...) for one"


@public
@must(lambda steps: len(steps) > 1 or _still)
def frames(
    draw: Callable[..., Any],
    steps: Sequence[int | float | str],
    *,
    alt: Callable[..., str],
    label: str = "training step",
) -> Frames:
    """Draw one matplotlib figure per step and put a slider under them.

    `draw(step)` returns a figure, `alt(step)` the sentence that says what it shows. Keep the axis limits, or the eye follows
    the axes.
    """
    pictures = []
    for step in steps:
        fig = draw(step)
        if not hasattr(fig, "savefig"):
            raise ValueError(
                f"draw(step) returned a {type(fig).__name__}; expected a matplotlib figure. End it with return fig."
            )
        pictures.append(pictured(fig, alt(step), colours=64))
    return Frames(tuple(steps), tuple(pictures), label)


def _measured(found: Any) -> Any:
    tables = (
        [to_array(one.values) for one in found.values() if hasattr(one, "values")] if found else []
    )
    right = (
        tables
        and len(tables) == len(found)
        and all(t.ndim == 2 and len(t) > 1 and np.isfinite(t).all() for t in tables)
    )
    return (
        bool(right)
        or "{'eight wires': effect(...)}, each with finite values [set, row], because each is drawn as a row of its own"
    )


@public
@must(_measured)
def effects(found: Mapping[str, Any], *, alt: str, label: str = "") -> None:
    """Draw what `induction.effect` found, a row each: the whole model, the change with its interval, and every drawn set.

    A bar is the whole model, a cross what is left after the change, with the 95 % interval of the change (over rows,
    paired) around it, and a dot each drawn set of the same kind. `label` says what was measured. **Source**: this book.
    """
    import matplotlib.pyplot as plt

    tables, rows = [to_array(one.values) for one in found.values()], np.arange(len(found))
    whole, after = np.array([table[:2].mean(1) for table in tables]).T
    change = [table[1] - table[0] for table in tables]
    margin = [1.96 * one.std(ddof=1) / len(one) ** 0.5 if len(one) > 1 else 0.0 for one in change]
    drawn = [table[2:].mean(1) for table in tables]
    fig, ax = plt.subplots(figsize=(7.4, 1.1 + 0.32 * len(found)))
    ax.scatter(
        whole, rows, marker="|", s=200, linewidths=2, color="#262626", label="the whole model"
    )
    dots = np.concatenate(drawn)
    if len(dots):
        ax.scatter(
            dots,
            np.repeat(rows, [len(one) for one in drawn]),
            s=16,
            alpha=0.5,
            color=PALETTE[0],
            label="drawn sets",
        )
    ax.errorbar(after, rows, xerr=margin, fmt="none", capsize=3, color=PALETTE[1])
    ax.scatter(
        after, rows, marker="X", s=60, color=PALETTE[1], zorder=3, label="after the change, 95 %"
    )
    ax.set(
        yticks=range(len(found)),
        yticklabels=list(found),
        ylim=(len(found) - 0.5, -0.5),
        xlabel=label,
    )
    ax.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    show(fig, alt=check_alt(alt))
