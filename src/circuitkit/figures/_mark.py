"""A short fingerprint of an array, in digits that survive another processor's rounding."""

import math

import numpy as np

from circuitkit._contract import Numbers, public


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
