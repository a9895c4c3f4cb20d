"""One matplotlib style for the whole book: colours that colour-blind readers can tell apart, on paper or in the dark.

Pictures are drawn dark on white. The book's style sheet inverts their lightness in dark mode and keeps their hues, so every
colour scale here starts at the background: strong colour means a large value in both modes.
"""

from pathlib import Path
from typing import Any

import numpy as np

from circuitkit._contract import Numbers, Positive, must, public

from ._mark import to_array

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

    look = matplotlib.rc_params_from_file(Path(__file__).with_name("circuitkit.mplstyle"), use_default_template=False)
    matplotlib.rcParams.update({**look, "axes.prop_cycle": cycler(color=PALETTE)})
    return PALETTE


def _is_finite(values: object) -> Any:
    array = to_array(values)
    return (array.size > 0 and bool(np.isfinite(array).all())) or "finite numbers, because a colour is chosen for each"


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
    return {"cmap": _ramp("circuitkit_unsigned", _UNSIGNED), "vmin": 0.0, "vmax": _largest(values, limit)}


def _largest(values: object, limit: float | int | None) -> float:
    largest = float(abs(to_array(values)).max()) if limit is None else float(limit)
    return largest or 1.0


def _ramp(name: str, colours: tuple[str, ...]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(name, colours)
