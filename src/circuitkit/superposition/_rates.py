"""Rates with intervals."""

import math
from typing import NamedTuple

from circuitkit._contract import Count, Natural, must, public


class Rate(NamedTuple):
    """`k` of `n`, with a 95 % interval.

    **Source**: see `rate`.
    """

    k: int
    n: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.k}/{self.n} = {self.k / self.n:.2f} (95 % interval {self.low:.2f} to {self.high:.2f})"


@public
@must(lambda k, n: k <= n or "0 <= k <= n and n >= 1: a rate of k in n")
def rate(k: Natural, n: Count) -> Rate:
    """The share `k / n` with its Wilson 95 % interval, which is sensible at 0 and at n too.

    `(k + z^2/2 +- z sqrt(k (n - k) / n + z^2/4)) / (n + z^2)` with z = 1.96.

    **Source**: Wilson 1927.

    >>> print(rate(9, 10))
    9/10 = 0.90 (95 % interval 0.60 to 0.98)
    """
    z = 1.959964
    half = z * math.sqrt(k * (n - k) / n + z * z / 4)
    return Rate(k, n, max(0.0, (k + z * z / 2 - half) / (n + z * z)), min(1.0, (k + z * z / 2 + half) / (n + z * z)))
