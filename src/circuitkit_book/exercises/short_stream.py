"""Short answers inside the pages of chapter 1: names of heads and wires that a reader finds by an experiment."""

from typing import Any

from circuitkit_book.exercises.checking import Result
from circuitkit_book.exercises.short_answers import judge_name


def check_head_with_the_name(answer: Any) -> Result:
    """Judge the head whose contribution to `or` disappears without the first sentence.

    Parameters
    ----------
    answer : the name of a head

    Notes
    -----
    Source: this book.
    """
    same = "Its contribution is the same with and without the first sentence."
    hints = {"L1H2": f"{same} It attends to ` D` itself.", "L1H0": f"{same} It is a bias."}
    return judge_name("The head that used the name", answer, "L1H3", hints)


def check_second_wire(answer: Any) -> Result:
    """Judge the other head of layer 0 whose wire into the keys of L1H3 the prediction needs.

    Parameters
    ----------
    answer : the name of a wire

    Notes
    -----
    Source: this book.
    """
    hints = {
        "L0H1->L1H3.K": "This is the wire that the page has cut. Which other one is needed?",
        "L0H2->L1H3.K": "Without this wire, the probability of `or` is still above 70%.",
        "L0H3->L1H3.K": "Without this wire, the probability of `or` is still 76%.",
        "L0H1->L1H3.Q": "A good find: the prediction needs this wire, too (2.8% without it). It enters the queries. "
        "Which other wire into the keys is needed?",
        "L0H0": "This is a head. The name of a wire ends with the input: L0H0->L1H3.K.",
    }
    return judge_name("The second wire", answer, "L0H0->L1H3.K", hints)
