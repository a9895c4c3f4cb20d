"""Short answers inside the pages of chapter 5: numbers that a reader works out in a few minutes."""

from typing import Any

from circuitkit_book.exercises.checking import Result
from circuitkit_book.exercises.short_answers import judge


def check_shared_write(answer: Any) -> Result:
    """Judge for which s two heads that write s on C3 complete all three trigrams.

    Parameters
    ----------
    answer : the lower and the upper limit of s

    Notes
    -----
    Source: this book.
    """
    hints = {
        "The residual stream adds 1 to the logit of B3, and C3 gets 2 s.": [0, 2],
        "From B3 both heads write on C3, so it gets 2 s and not s.": [1, 2],
        "From B1 only head 0 is active, so C3 gets s and not 2 s.": [0.5, 1],
    }
    return judge("Limits of the shared write", answer, [0.5, 2], hints)


def check_six_gates(answer: Any) -> Result:
    """Judge the gates of three queries 0.5, 2 and -1 and two keys 1 and 0.4.

    Parameters
    ----------
    answer : six numbers, query by query

    Notes
    -----
    Source: this book.
    """
    hints = {
        "These are the scores. The clamp limits them to the interval from 0 to 1.": [
            0.5,
            0.2,
            2,
            0.8,
            -1,
            -0.4,
        ],
        "A gate score is a product of the two numbers, and not their sum.": [1, 0.9, 1, 1, 0, 0],
        "This is a sigmoid of the scores. The post's gate is a clamp.": [
            0.622,
            0.55,
            0.881,
            0.69,
            0.269,
            0.401,
        ],
        "List the gates query by query: both keys of the first query come first.": [
            0.5,
            1,
            0,
            0.2,
            0.8,
            0,
        ],
    }
    return judge("Six gates", answer, [0.5, 0.2, 1, 0.8, 0, 0], hints)


def check_three_gates(answer: Any) -> Result:
    """Judge the L0.6 penalty of three gates that are open by one third each.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "This is the sum of the powers. Raise it to the power 1 / 0.6.": [3 * (1 / 3) ** 0.6],
        "This is the sum of the gates, the penalty for p = 1.": [1.0],
        "Each gate is 1/3, and not 1.": [3 ** (1 / 0.6)],
    }
    return judge("Three gates", answer, [3 ** (2 / 3)], hints)


def check_n_subsets(answer: Any) -> Result:
    """Judge how many subsets of the other heads there are for one head of twelve.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "The head itself stays, so only the other eleven can be ablated.": [4096],
        "The empty subset counts as well: no other head is ablated.": [2047],
        "Each of the other heads is either in the subset or not: multiply.": [22],
    }
    return judge("Number of subsets", answer, [2048], hints)


def check_cancelling_writes(answer: Any) -> Result:
    """Judge the write penalty of two heads that write 2 and -1 on one logit.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    right = (2**0.6 + 1) ** (1 / 0.6)
    hints = {
        "This is the penalty of the sum. Take the size of each write first.": [1.0],
        "This is the sum of the powers. Raise it to the power 1 / 0.6.": [2**0.6 + 1],
        "This is the penalty for p = 1.": [3.0],
    }
    return judge("Two writes that cancel", answer, [right], hints)
