"""Exercise 4.5. `answer(n_pos, tolerance, eps)` returns `[smallest, largest]`, the Omegas that keep two errors small.

**Leak**: `n_pos` tokens keep the weight $e^{-2\\Omega}$ each, together at most `tolerance`. **Rounding**: a score near
$2\\Omega$ is off by at most half of $2\\Omega\\cdot$`eps`, which moves the sigmoid by at most `tolerance`.
"""

import math
from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks


def spec(n_pos: int, tolerance: float, eps: float) -> Tensor:
    # Leak: n_pos tokens of weight exp(-2 omega) each. Rounding: a quarter of half the gap between numbers at 2 omega.
    ends = []
    for excess in (
        lambda x: tolerance - n_pos * math.exp(-2 * x),
        lambda x: (2 * x * eps) / 2 / 4 - tolerance,
    ):
        below, above = 0.0, 1e6
        for _ in range(200):
            middle = (below + above) / 2
            below, above = (middle, above) if excess(middle) < 0 else (below, middle)
        ends.append(below)
    return torch.tensor(ends, dtype=torch.float64)


def body(
    n_pos, tolerance, eps, *, per_omega=2.0, log="e", count="n", quotient="right", half=0.5, slope=0.25, size=2.0, upper="right",
    order="right",
):  # fmt: skip
    take = {"e": math.log, "10": math.log10, "2": math.log2, "none": lambda v: v}[log]
    tokens = {
        "n": n_pos,
        "1": 1,
        "n - 1": n_pos - 1,
        "n + 1": n_pos + 1,
        "one over": 1 / n_pos,
        "n squared": n_pos**2,
    }[count]
    over = {"eps": eps, "none": 1.0}.get(quotient, tolerance)
    low = take(tokens / over) / per_omega
    low = -low if quotient == "upside down" else low
    high = tolerance / (size * eps * half * slope)
    high = {
        "right": high, "upside down": 1 / high, "eps": tolerance / (size * half * slope),
        "tolerance": 1 / (size * half * slope * eps),
    }[upper]  # fmt: skip
    ends: Any = {"right": [low, high], "exchanged": [high, low], "smallest": low, "largest": high}[
        order
    ]
    return torch.tensor(ends, dtype=torch.float64)


EXERCISE = Exercise(
    about="4.5 how large Omega should be | medium | 15 minutes | conversion-fine-print#without-a-mask-a-large-number",
    spec=spec, body=body,
    inputs={
        "n_pos": lambda size, generator, case: 2 + 3 * size["step"],
        "eps": lambda size, generator, case: 2.0 ** -(4, 10, 23, 52)[size["step"] % 4],
        "tolerance": lambda size, generator, case: (2 + int(torch.randint(0, 15, (), generator=generator))) * case["eps"],
    },
    names=("end",),
    choices="""
    per_omega = 1.0 | the smallest Omega is the post's, twice what is needed | The post asks exp(Omega) > N / tolerance. But its scores are 2 Omega apart.
    per_omega = 0.5 / 4.0 | the logarithm is not divided by 2 | exp(-2 Omega) n = tolerance: solve it for Omega.
    count = 1 | the number of tokens is left out | One hidden token keeps exp(-2 Omega). How many of them are there?
    count = n - 1 / n + 1 | one token too few or too many is counted | There are n_pos other tokens.
    count = one over / n squared | the number of tokens is not a factor | n_pos tokens keep exp(-2 Omega) each.
    log = 10 / 2 | the logarithm has another base than e | A softmax takes powers of e, so the natural logarithm undoes it.
    log = none | the logarithm is missing | exp(-2 Omega) n = tolerance: solve it for Omega.
    quotient = upside down | the logarithm is upside down | The smaller the tolerance, the larger Omega has to be. Which of the two belongs on top of the quotient?
    quotient = eps | eps stands in for the tolerance in the leak | The leak may be as large as the tolerance; eps is about rounding.
    quotient = none | the tolerance is left out of the leak | Together the tokens may keep at most `tolerance`.
    slope = 1.0 | the largest Omega leaves out how flat the sigmoid is | A score that is wrong by r moves the weight by less than r. What is the steepest slope of a sigmoid?
    slope = 4.0 | the slope of the sigmoid divides where it should multiply | A flat sigmoid makes errors smaller, so Omega may be larger.
    half = 1.0 | rounding is counted as a whole step | Rounding goes to the nearest number, which is at most half a step away.
    size = 1.0 | scores are taken to be Omega, not 2 Omega, when they are rounded | Rounding grows with the score. How large are the scores of itself and of the bias token?
    upper = upside down | the largest Omega is upside down | The coarser the numbers, the smaller Omega must stay.
    upper = eps | eps is left out of the largest Omega | Numbers near 2 Omega stand 2 Omega eps apart.
    upper = tolerance | the tolerance is left out of the largest Omega | The more may be off, the larger Omega may be.
    order = exchanged | the two ends are exchanged | Leak says how large Omega must be at least, rounding how large at most. Return them in this order.
    """,
)  # fmt: skip
check_omega_window = checks(EXERCISE, __doc__)
