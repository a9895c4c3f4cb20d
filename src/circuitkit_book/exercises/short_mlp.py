"""Short answers inside the pages of chapter 4: numbers that a reader works out in a few minutes."""

import math
from typing import Any

from circuitkit_book.exercises.checking import Result
from circuitkit_book.exercises.short_answers import judge

SIGMA_1 = 1 / (1 + math.exp(-1))


def check_second_neuron(answer: Any) -> Result:
    """Judge what the head of the neuron with w_in (1, 0) and w_out (0, 3) writes at the first token.

    Parameters
    ----------
    answer : a list of two numbers

    Notes
    -----
    Source: this book.
    """
    hints = {
        "This is what the token writes if all attention goes to itself. How much does it get?": [
            0,
            3,
        ],
        "You used the attention to the bias token. Its value is 0, so it adds nothing.": [
            0,
            3 * (1 - SIGMA_1),
        ],
        "Your result has the wrong coordinate: w_out is (0, 3).": [3 * SIGMA_1, 0],
    }
    return judge("A second neuron", answer, [0, 3 * SIGMA_1], hints)


def check_sharpness(answer: Any) -> Result:
    """Judge the smallest sharpness whose ReLU is wrong by at most 0.001.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "The error is 0.2785 divided by the sharpness. Solve for the sharpness.": [0.0002785],
        "This is where the error is largest, times 1,000. The largest error itself is 0.2785 / s.": [
            1278.0
        ],
    }
    return judge("A sharp ReLU", answer, [278.46], hints)


def check_row_of_scores(answer: Any) -> Result:
    """Judge the scores of the second token, which reads -2, with Omega = 20.

    Parameters
    ----------
    answer : a list of three numbers: token 1, token 2 and the bias token

    Notes
    -----
    Source: this book.
    """
    hints = {
        "You added x where the post subtracts it: the token reads -2, so -x is 2.": [-2, 38, 40],
        "Omega enters the scores twice: the position block holds 2 Omega.": [2, 22, 20],
        "The bias token's key does not read x, so its score is 2 Omega alone.": [2, 42, 42],
        "This is the row of the first token. The second token attends to itself.": [39, -1, 40],
    }
    return judge("The second row of scores", answer, [2, 42, 40], hints)


def check_smallest_omega(answer: Any) -> Result:
    """Judge the smallest Omega for 2,048 other tokens and a tolerance of 1e-6.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    right = math.log(2048 / 1e-6) / 2
    hints = {
        "Scores differ by 2 Omega, so half of this is enough.": [2 * right],
        "This ignores how many tokens there are: together they have 2,048 times the weight.": [
            math.log(1e6) / 2
        ],
    }
    return judge("The smallest Omega", answer, [right], hints)


def check_bias_row(answer: Any) -> Result:
    """Judge the last entry of LayerNorm applied to (0, 0, 0, 1).

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "This is the entry before the division. Divide by the standard deviation.": [0.75],
        "This is what RMSNorm gives. LayerNorm subtracts the mean first.": [2.0],
        "This is another entry of the row. The last one is asked for.": [-(3**-0.5)],
        "The bias token does not stay as it was: that is the point of this section.": [1.0],
    }
    return judge("The norm of the bias token", answer, [3**0.5], hints)


def check_n_paths(answer: Any) -> Result:
    """Judge the number of paths in one layer of 12 heads and 3,072 neurons.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "A path may also skip the attention heads, the neurons, or both.": [12 * 3072],
        "A path may skip the neurons, too.": [13 * 3072],
        "A path may skip the heads, too.": [12 * 3073],
        "These are components. A path passes at most one head and at most one neuron.": [3084],
    }
    return judge("The number of paths", answer, [13 * 3073], hints)
