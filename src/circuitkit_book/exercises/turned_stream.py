"""The matrices of the same model when its stream is rotated."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, built, normal, orthonormal_rows

Matrices = tuple[Tensor, Tensor, Tensor, Tensor]


def solution(R: Tensor, W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Matrices:
    """Matrices that write x now write x R, and matrices that read x R undo R."""
    return W_E @ R, R.T @ W_V, W_O @ R, R.T @ W_U


def observe(answer: Any, R: Tensor, W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Tensor:
    """Compute the stream before and after the head, and the logits, `[token, coordinate]`."""
    W_E, W_V, W_O, W_U = built(answer, W_E=W_E.shape, W_V=W_V.shape, W_O=W_O.shape, W_U=W_U.shape)
    stream = W_E + W_E @ W_V @ W_O
    return torch.cat([W_E, stream, stream @ W_U], 1)


def cases(generator: Generator) -> Iterator[Case]:
    """Random matrices and a random orthogonal R."""
    for vocab, d_model, d_head in [(3, 4, 2), (4, 5, 3), (5, 7, 2), (6, 8, 4), (4, 5, 4)]:
        yield {
            "R": orthonormal_rows(generator, d_model, d_model),
            "W_E": normal(generator, vocab, d_model),
            "W_V": normal(generator, d_model, d_head),
            "W_O": normal(generator, d_head, d_model),
            "W_U": normal(generator, d_model, vocab),
        }


def inverse_of_R(R, W_E, W_V, W_O, W_U):
    """The stream is rotated by the inverse of R. The new stream has to be x @ R."""
    return solution(R.T, W_E, W_V, W_O, W_U)


def nothing_rotated(R, W_E, W_V, W_O, W_U):
    """Nothing is rotated. The new stream has to be x @ R; start with W_E, which writes into it."""
    return W_E, W_V, W_O, W_U


def all_from_the_right(R, W_E, W_V, W_O, W_U):
    """All matrices are multiplied by R from the right. W_V and W_U read the stream with their first axis."""
    return W_E @ R, W_V @ R, W_O @ R, W_U @ R


def readers_as_they_were(R, W_E, W_V, W_O, W_U):
    """W_V and W_U are as they were. They read x @ R now, so they have to undo R."""
    return W_E @ R, W_V, W_O @ R, W_U


def readers_with_R(R, W_E, W_V, W_O, W_U):
    """W_V and W_U are multiplied by R. They have to undo R: which matrix is its inverse?"""
    return W_E @ R, R @ W_V, W_O @ R, R @ W_U


def W_E_as_it_was(R, W_E, W_V, W_O, W_U):
    """W_E is as it was. It has to write x @ R where it wrote x."""
    return W_E, R.T @ W_V, W_O @ R, R.T @ W_U


def W_V_as_it_was(R, W_E, W_V, W_O, W_U):
    """W_V is as it was. It reads x @ R now, so it has to undo R."""
    return W_E @ R, W_V, W_O @ R, R.T @ W_U


def W_O_as_it_was(R, W_E, W_V, W_O, W_U):
    """W_O is as it was. It writes into the stream, so it has to write x @ R where it wrote x."""
    return W_E @ R, R.T @ W_V, W_O, R.T @ W_U


def W_O_with_the_inverse(R, W_E, W_V, W_O, W_U):
    """W_O is multiplied by the inverse of R. It has to write x @ R where it wrote x."""
    return W_E @ R, R.T @ W_V, W_O @ R.T, R.T @ W_U


def W_U_as_it_was(R, W_E, W_V, W_O, W_U):
    """W_U is as it was. It reads x @ R now, so it has to undo R."""
    return W_E @ R, R.T @ W_V, W_O @ R, W_U


def head_as_it_was(R, W_E, W_V, W_O, W_U):
    """The head is as it was. W_V reads x @ R now, and W_O has to write x @ R."""
    return W_E @ R, W_V, W_O, R.T @ W_U


def W_V_with_R(R, W_E, W_V, W_O, W_U):
    """W_V is multiplied by R. It reads x @ R, so it has to undo R: which matrix is the inverse of R?"""
    return W_E @ R, R @ W_V, W_O @ R, R.T @ W_U


def W_U_with_R(R, W_E, W_V, W_O, W_U):
    """W_U is multiplied by R. It reads x @ R, so it has to undo R: which matrix is the inverse of R?"""
    return W_E @ R, R.T @ W_V, W_O @ R, R @ W_U


def W_E_with_the_inverse(R, W_E, W_V, W_O, W_U):
    """W_E is multiplied by the inverse of R. It has to write x @ R where it wrote x."""
    return W_E @ R.T, R.T @ W_V, W_O @ R, R.T @ W_U


def W_O_from_the_left(R, W_E, W_V, W_O, W_U):
    """W_O is multiplied from the left. It writes into the stream with its last axis, so R belongs on its right."""
    return W_E @ R, R.T @ W_V, R @ W_O, R.T @ W_U


EXERCISE = Exercise(
    name="turned_stream",
    title="rotate the stream",
    section="1-residual-stream/stream-is-a-sum#the-stream-has-no-privileged-basis",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("token", "number"),
    mistakes=(
        inverse_of_R, nothing_rotated, all_from_the_right, readers_as_they_were, readers_with_R,
        W_E_as_it_was, W_V_as_it_was, W_O_as_it_was, W_O_with_the_inverse, W_U_as_it_was,
        head_as_it_was, W_V_with_R, W_U_with_R, W_E_with_the_inverse, W_O_from_the_left,
    ),
)  # fmt: skip


def check_turned_stream(answer: Any) -> Result:
    """Check that `answer(R, W_E, W_V, W_O, W_U)` returns the four matrices of the model with the stream `x @ R`.

    The check compares the stream, which has to be rotated by `R`, and the logits, which have to be the same.

    Parameters
    ----------
    answer : function of `R [d_model, d_model]`, orthogonal, `W_E [vocab, d_model]`, `W_V [d_model, d_head]`,
        `W_O [d_head, d_model]` and `W_U [d_model, vocab]`. It returns four matrices of the same shapes.

    Source: this book.
    """
    return check(EXERCISE, answer)
