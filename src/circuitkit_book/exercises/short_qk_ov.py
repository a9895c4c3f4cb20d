"""Short answers inside the pages of chapter 2."""

from typing import Any

from circuitkit_book.exercises.checking import Result
from circuitkit_book.exercises.short_answers import judge, judge_word


def check_column_of_ory(answer: Any) -> Result:
    """Judge which source token raises `ory` most through H1 of the one-layer model.

    Parameters
    ----------
    answer : the token as a string

    Notes
    -----
    Source: this book.
    """
    before = (
        "This token stands directly before `ory`, so the direct path can predict `ory` from it."
    )
    hints: dict[str, str] = dict.fromkeys(("gl", "hist", "the", "m", "ict"), before)
    hints["isf"] = "`isf` raises `ory`, but another source raises it more."
    why = "It begins *satisfactory*, which is split into ` satisf`, `act` and `ory`."
    return judge_word("Read a column", answer, " satisf", why, hints)


def check_rank_of_ov(answer: Any) -> Result:
    """Judge the largest rank that the full OV circuit of a head can have.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "The stream has 160 dimensions, but the head has fewer: which dimension is smallest?": [
            160
        ],
        "This is the number of tokens. Which of the matrices in the product is narrowest?": [2048],
    }
    return judge("Rank of the OV circuit", answer, [32], hints)


def check_row_of_he(answer: Any) -> Result:
    """Judge the source to which H0 of the one-layer model gives the highest score at the destination ` he`.

    Parameters
    ----------
    answer : the token as a string

    Notes
    -----
    Source: this book.
    """
    hints = {
        "have": "This is the smallest or largest entry of another row. Is the row that of ` he`?"
    }
    why = "At ` he`, the head attends to a word of the King James Bible."
    return judge_word("A row of H0", answer, " hath", why, hints)


def check_score_of_itself(answer: Any) -> Result:
    """Judge for which share of the frequent tokens H1 of the one-layer model lowers the score of the token itself.

    Parameters
    ----------
    answer : a share between 0 and 1

    Notes
    -----
    Source: this book.
    """
    hints = {
        "You counted the tokens whose own score is above the mean of their row.": [0.134],
        "This is a percentage. Give a share between 0 and 1.": [86.6],
    }
    return judge("Not itself", answer, [0.866], hints)


def check_constant_head(answer: Any) -> Result:
    """Judge by how much the logit of `or` falls if L1H0, whose mean ablation changes nothing, writes zero.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "This is the fall if the mean replaces the output. Zero adds nothing to the logit.": [0.0],
        "This is what the head adds. By how much does the logit fall? Give a positive number.": [
            -2.957
        ],
        "L1H0 and its mean add the same, so one of them is counted too often here.": [5.914],
    }
    return judge("Another replacement", answer, [2.957], hints)


def check_odds_of_mind(answer: Any) -> Result:
    """Judge the odds of `mind` to `bay` after "keep ... in" when the direct path adds 5 to `mind`.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "This is the difference of the logits. The odds are its exponential.": [5.0],
        "These are the odds of `bay` to `mind`.": [0.0067379],
        "The head adds the same number to both words, so it drops out of the odds.": [0.0],
        "This is the probability of `mind`, 148 / 149. The odds are p / (1 - p).": [0.9933],
    }
    return judge("Keep in mind", answer, [148.41], hints)
