"""Short answers inside the pages of chapter 3."""

from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Result
from circuitkit_book.exercises.exercise import as_tensor
from circuitkit_book.exercises.short_answers import as_name, judge, judge_name


def check_two_tokens_later(
    answer: Any, word: Tensor, place: Tensor, previous: Tensor, output: Tensor
) -> Result:
    """Judge the key matrix with which the hand-built model predicts the second token after [A].

    Parameters
    ----------
    answer : the new W_K of the first head
    word, place, previous, output : the four groups of directions of the page

    Notes
    -----
    Source: this book.
    """
    title = "Two tokens later"
    if answer is None or answer is ...:
        return Result(title, False, f"{title}: No answer yet.", done=False)
    matrix = as_tensor(answer)
    shape = list(place.T.shape)
    if matrix is None or list(matrix.shape) != shape:
        given = type(answer).__name__ if matrix is None else f"shape {list(matrix.shape)}"
        text = f"Give one matrix of shape {shape}, such as place.T. You gave {given}."
        return Result(title, False, f"{title}: not yet.\n{text}", answer=answer)
    numbers = (place.double() @ matrix).argmax(1)  # the key of each position, as a position
    here = torch.arange(len(place))
    right = (here + 2)[:-2]
    if torch.equal(numbers[:-2], right):
        text = "right. It replaces W_K of the previous-token head, which now attends two back."
        return Result(title, True, f"{title}: {text}", answer=answer)
    hints = {
        "With this key, the head attends to its own position.": here,
        "With this key, the head attends to the previous position, as before.": here + 1,
        "This shifts in the other direction: the head would have to attend to a later position.": here
        - 2,
    }
    found = [hint for hint, keys in hints.items() if torch.equal(numbers[2:-2], keys[2:-2])]
    text = "\n".join([f"{title}: not yet.", *found])
    return Result(title, False, text, answer=answer, mistake=" ".join(found))


def check_head_too_many(answer: Any) -> Result:
    """Judge the head of the circuit of four without which `or` stays the most probable token.

    Parameters
    ----------
    answer : the name of a head

    Notes
    -----
    Source: this book.
    """
    needed = "Without this head, no set of heads predicts `or`."
    hints = {
        "L0H0": needed,
        "L0H1": needed,
        "L1H3": needed,
        "L1H0": "This head is not among the four. At its mean, it is on in any case.",
    }
    return judge_name("One head too many", answer, "L1H2", hints)


def check_rescaled_score(answer: Any) -> Result:
    """Judge the factor by which a composition score changes when W_O of the writer is doubled.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "The product doubles, but so does the norm of W_OV, by which the score is divided.": [2],
        "The norm of W_OV doubles, but so does the product in the numerator.": [0.5],
        "A norm grows in proportion to its matrix, not with the square.": [4],
    }
    return judge("Twice the output", answer, [1], hints)


def check_tied_wires(answer: Any) -> Result:
    """Judge the precision of a method that cannot tell apart the three wires between two heads.

    Parameters
    ----------
    answer : a number

    Notes
    -----
    Source: this book.
    """
    hints = {
        "The three wires between L0H1 and L1H3 are equal for this method, and one of them is not known.": [
            1
        ],
        "Two known wires lead from L0H1 to L1H3, and both are among the first three.": [1 / 3],
    }
    return judge("Three equal scores", answer, [2 / 3], hints)


def check_possible_writer(answer: Any) -> Result:
    """Judge which of three previous-token heads can write into the keys of L18H0.

    Parameters
    ----------
    answer : the name of a head, such as "L1H0"

    Notes
    -----
    Source: this book.
    """
    title = "Which head can write?"
    if answer is None or answer is ...:
        return Result(title, False, f"{title}: No answer yet.", done=False)
    name = str(answer).strip().upper()
    if name == "L16H0":
        return Result(
            title, True, f"{title}: right. Only L16H0 is in an earlier layer.", answer=answer
        )
    hint = "Give the name of one of the three heads."
    if name in ("L19H3", "L22H1"):
        hint = (
            f"{name} is in a later layer than L18H0, so L18H0 runs before it has written anything."
        )
    return Result(title, False, f"{title}: not yet.\n{hint}", answer=answer)


def check_second_match(answer: Any) -> Result:
    """Judge which two wires carry the second match of L1H3.

    Parameters
    ----------
    answer : a list of two wires, such as `["L0H2->L1H3.V", "L0H3->L1H3.Q"]`

    Notes
    -----
    Source: this book.
    """
    title = "The second match"
    if answer is None or answer is ...:
        return Result(title, False, f"{title}: No answer yet.", done=False)
    wires = [answer] if isinstance(answer, str) else list(answer)
    given = {as_name(str(wire)) for wire in wires}
    if given == {"L0H1->L1H3.Q", "L0H0->L1H3.K"}:
        text = "right. L0H1 writes into the query, and L0H0 writes into the key."
        return Result(title, True, f"{title}: {text}", answer=answer)
    hint = "Read the row and the column of the entry: which head is in the query, and which in the key?"
    if given == {"L0H0->L1H3.Q", "L0H1->L1H3.K"}:
        hint = "You exchanged row and column. Rows are parts of the query."
    elif "L0H1->L1H3.K" in given:
        hint = "L0H1->L1H3.K carries the first term, in which the query is the token embedding."
    return Result(title, False, f"{title}: not yet.\n{hint}", answer=answer)
