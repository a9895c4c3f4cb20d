"""Exercise 4.5: how large Omega has to be, and how large it may be."""

from collections.abc import Iterator
from math import exp, log
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


def one_token_fewer(n_pos, tolerance, eps):
    """Your leak counts n_pos - 1 tokens. There are n_pos others."""
    return log((n_pos - 1) / tolerance) / 2, 4 * tolerance / eps


def one_token_more(n_pos, tolerance, eps):
    """Your leak counts n_pos + 1 tokens. There are n_pos others."""
    return log((n_pos + 1) / tolerance) / 2, 4 * tolerance / eps


def base_10(n_pos, tolerance, eps):
    """Your logarithm has base 10. The inverse of exp is the natural logarithm."""
    return log(n_pos / tolerance) / log(10) / 2, 4 * tolerance / eps


def base_2(n_pos, tolerance, eps):
    """Your logarithm has base 2. The inverse of exp is the natural logarithm."""
    return log(n_pos / tolerance) / log(2) / 2, 4 * tolerance / eps


def no_logarithm(n_pos, tolerance, eps):
    """The logarithm is missing. Solve n_pos exp(-2 Omega) = tolerance for Omega."""
    return n_pos / tolerance / 2, 4 * tolerance / eps


def logarithm_negative(n_pos, tolerance, eps):
    """Your smallest Omega is negative. Which of the two belongs on top of the quotient?"""
    return log(tolerance / n_pos) / 2, 4 * tolerance / eps


def product_in_the_logarithm(n_pos, tolerance, eps):
    """You multiply n_pos and tolerance. Solve n_pos exp(-2 Omega) = tolerance for Omega."""
    return -log(tolerance * n_pos) / 2, 4 * tolerance / eps


def eps_in_the_leak(n_pos, tolerance, eps):
    """Your leak uses eps. It may be as large as the tolerance; eps is about rounding."""
    return log(n_pos / eps) / 2, 4 * tolerance / eps


def no_tolerance_in_the_leak(n_pos, tolerance, eps):
    """The tolerance is missing from the leak. Together the tokens may keep at most `tolerance`."""
    return log(n_pos) / 2, 4 * tolerance / eps


def no_slope(n_pos, tolerance, eps):
    """The slope of the sigmoid is missing. It is at most 1/4, so a score that is off by r moves the weight by r / 4."""
    return log(n_pos / tolerance) / 2, tolerance / eps


def slope_inverted(n_pos, tolerance, eps):
    """You divide by the slope twice over. A small slope makes errors smaller, so Omega may be larger."""
    return log(n_pos / tolerance) / 2, tolerance / eps / 4


def whole_step(n_pos, tolerance, eps):
    """You count a whole step of rounding. A number is off by at most half a step."""
    return log(n_pos / tolerance) / 2, 2 * tolerance / eps


def score_of_omega(n_pos, tolerance, eps):
    """You take scores to be Omega when they are rounded. They are near 2 Omega."""
    return log(n_pos / tolerance) / 2, 8 * tolerance / eps


def half_forgotten_twice(n_pos, tolerance, eps):
    """Your largest Omega is too small by a factor of 8. Write 2 Omega eps / 2 for the error of the score, times 1/4."""
    return log(n_pos / tolerance) / 2, tolerance / eps / 2


def quotient_inverted(n_pos, tolerance, eps):
    """Your largest Omega is inverted. The coarser the numbers are, the smaller Omega has to be."""
    return log(n_pos / tolerance) / 2, eps / (4 * tolerance)


def no_eps(n_pos, tolerance, eps):
    """eps is missing from the largest Omega. Numbers near 2 Omega are 2 Omega eps apart."""
    return log(n_pos / tolerance) / 2, 4 * tolerance


def no_tolerance(n_pos, tolerance, eps):
    """The tolerance is missing from the largest Omega. The more the weight may be off, the larger Omega may be."""
    return log(n_pos / tolerance) / 2, 4 / eps


def ends_exchanged(n_pos, tolerance, eps):
    """The two ends are exchanged. The leak gives the smallest Omega, and rounding the largest."""
    smallest, largest = solution(n_pos, tolerance, eps)
    return largest, smallest


def leak_at_omega(n_pos, tolerance, eps):
    """You return the leak at some Omega. Return the Omega at which it equals the tolerance."""
    smallest, largest = solution(n_pos, tolerance, eps)
    return n_pos * exp(-2 * smallest), largest


EXERCISE = Exercise(
    number="4.5",
    name="omega_window",
    title="how large Omega should be",
    section="conversion-fine-print#without-a-mask-a-large-number",
    solution=solution,
    cases=cases,
    axes=("end",),
    mistakes=(
        post, one_token, one_token_fewer, one_token_more, base_10, base_2, no_logarithm, logarithm_negative,
        product_in_the_logarithm, eps_in_the_leak, no_tolerance_in_the_leak, no_slope, slope_inverted,
        whole_step, score_of_omega, half_forgotten_twice, quotient_inverted, no_eps, no_tolerance,
        ends_exchanged, leak_at_omega,
    ),
)  # fmt: skip


def check_omega_window(answer: Any) -> Result:
    r"""Exercise 4.5: `answer(n_pos, tolerance, eps)` returns the smallest and the largest useful Omega.

    Leak: `n_pos` tokens keep the weight $e^{-2\\Omega}$ each, together at most `tolerance`. Rounding: a score near
    $2\\Omega$ is off by at most half of $2\\Omega$ `eps`, which moves the sigmoid by at most `tolerance`.

    Parameters
    ----------
    answer : function of an integer and two numbers. It returns two numbers.

    Source: this book.
    """
    return check(EXERCISE, answer)
