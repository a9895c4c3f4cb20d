"""How large Omega has to be, and how large it may be."""

from collections.abc import Iterator
from math import log, log2, log10
from typing import Any

from torch import Generator

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, whole

Ends = tuple[float, float]


def solution(n_pos: int, tolerance: float, eps: float) -> Ends:
    """Solve n_pos exp(-2 Omega) = tolerance and (2 Omega eps / 2) / 4 = tolerance."""
    smallest = log(n_pos / tolerance) / 2
    largest = 4 * tolerance / eps
    return smallest, largest


def cases(generator: Generator) -> Iterator[Case]:
    """The rounding of four number formats."""
    for step, bits in enumerate((4, 10, 23, 52, 8)):
        eps = 2.0**-bits
        tolerance = (2 + whole(generator, 15)) * eps
        yield {"n_pos": 2 + 3 * step, "tolerance": tolerance, "eps": eps}


def post(n_pos, tolerance, eps):
    """Your smallest Omega is twice what is needed. The scores differ by 2 Omega, so solve exp(-2 Omega) n_pos = tolerance."""
    return log(n_pos / tolerance), 4 * tolerance / eps


def one_token(n_pos, tolerance, eps):
    """Your leak counts one token. There are n_pos of them."""
    return log(1 / tolerance) / 2, 4 * tolerance / eps


def logarithm_negative(n_pos, tolerance, eps):
    """Your smallest Omega is negative. Which of the two belongs on top of the quotient?"""
    return log(tolerance / n_pos) / 2, 4 * tolerance / eps


def base_10(n_pos, tolerance, eps):
    """Your logarithm has base 10. The weights are powers of e, so take the natural logarithm, `math.log`."""
    return log10(n_pos / tolerance) / 2, 4 * tolerance / eps


def base_2(n_pos, tolerance, eps):
    """Your logarithm has base 2. The weights are powers of e, so take the natural logarithm, `math.log`."""
    return log2(n_pos / tolerance) / 2, 4 * tolerance / eps


def eps_in_the_leak(n_pos, tolerance, eps):
    """Your leak uses eps. It may be as large as the tolerance; eps is about rounding."""
    return log(n_pos / eps) / 2, 4 * tolerance / eps


def no_slope(n_pos, tolerance, eps):
    """The slope of the sigmoid is missing. It is at most 1/4, so a score that is off by r moves the weight by r / 4."""
    return log(n_pos / tolerance) / 2, tolerance / eps


def whole_step(n_pos, tolerance, eps):
    """You count a whole step of rounding. A number is off by at most half a step."""
    return log(n_pos / tolerance) / 2, 2 * tolerance / eps


def score_of_omega(n_pos, tolerance, eps):
    """You take scores to be Omega when they are rounded. They are near 2 Omega."""
    return log(n_pos / tolerance) / 2, 8 * tolerance / eps


def quotient_inverted(n_pos, tolerance, eps):
    """Your largest Omega is inverted. The coarser the numbers are, the smaller Omega has to be."""
    return log(n_pos / tolerance) / 2, eps / (4 * tolerance)


def ends_exchanged(n_pos, tolerance, eps):
    """The two ends are exchanged. The leak gives the smallest Omega, and rounding the largest."""
    smallest, largest = solution(n_pos, tolerance, eps)
    return largest, smallest


def slope_inverted(n_pos, tolerance, eps):
    """You multiply by the slope where you have to divide. A flat sigmoid allows a larger Omega."""
    return log(n_pos / tolerance) / 2, tolerance / eps / 4


EXERCISE = Exercise(
    name="omega_window",
    title="how large Omega should be",
    section="4-mlps-as-heads/omega-construction#which-omega-is-large-enough",
    solution=solution,
    cases=cases,
    axes=("end",),
    mistakes=(
        post, one_token, logarithm_negative, base_10, base_2, eps_in_the_leak, no_slope,
        whole_step, score_of_omega, quotient_inverted, ends_exchanged, slope_inverted,
    ),
)  # fmt: skip


def check_omega_window(answer: Any) -> Result:
    r"""Check that `answer(n_pos, tolerance, eps)` returns the smallest and the largest useful Omega.

    Leak: `n_pos` tokens keep the weight $e^{-2\\Omega}$ each, together at most `tolerance`. Rounding: a score near
    $2\\Omega$ is off by at most half of $2\\Omega$ `eps`, which moves the sigmoid by at most `tolerance`.

    Parameters
    ----------
    answer : function of an integer and two numbers. It returns two numbers.

    Source: this book.
    """
    return check(EXERCISE, answer)
