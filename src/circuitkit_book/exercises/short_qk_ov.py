"""Short answers inside the pages of chapter 2."""

from typing import Any

from circuitkit_book.exercises.checking import Result
from circuitkit_book.exercises.short_answers import judge, judge_word

READ_A_ROW = "You read a row: this token is raised by ` Mr`. Which tokens raise `ash` is a column."
NOT_RAISED = "The logit of `or` hardly depends on this head, whatever it is replaced with."


def check_column_of_ash(answer: Any) -> Result:
    """Judge which source token raises `ash` most through H1 of the one-layer model.

    Parameters
    ----------
    answer : the token as a string

    Notes
    -----
    Source: this book.
    """
    hints: dict[str, str] = dict.fromkeys(("ll", "ood", "pri", "ix", "ps"), READ_A_ROW)
    hints["Mr"] = "` Mr` raises `ash`, but another source raises it more."
    hints["Miss"] = "` Miss` raises `ash` by 8.0. Two other sources raise it more."
    why = "The novel has two of them: Mrs. Dashwood, the mother of its heroines, and Mrs. John Dashwood."
    return judge_word("Read a column", answer, " Mrs", why, hints)


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
    """Judge which head contributes to the logit of `or` and is not needed once its mean is kept.

    Parameters
    ----------
    answer : the name of a head, such as "L0H2"

    Notes
    -----
    Source: this book.
    """
    hints = {
        "L1H3": "Its contribution is large, and mean ablation lowers the logit by 7.8, too.",
        "L1H2": "Its contribution is large, and mean ablation lowers the logit as well.",
        "L0H1": "Its contribution is almost 0. You need a large one.",
        "L0H3": "Its contribution is almost 0. You need a large one.",
        "L1H1": "Its contribution is almost 0. You need a large one.",
    }
    why = "It always attends to the first token, so it writes its mean everywhere."
    head = answer.strip() if isinstance(answer, str) else answer
    return judge_word("A constant head", head, "L1H0", why, hints)


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
