"""A head whose full OV circuit is the identity."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor
from torch.linalg import pinv

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, built, normal


def solution(W_E: Tensor, W_U: Tensor) -> tuple[Tensor, Tensor]:
    """Undo the embedding, then undo the unembedding."""
    W_V = W_E.T @ torch.linalg.inv(W_E @ W_E.T)
    W_O = torch.linalg.inv(W_U.T @ W_U) @ W_U.T
    return W_V, W_O


def observe(answer: Any, W_E: Tensor, W_U: Tensor) -> Tensor:
    """Compute the full OV circuit, `[source token, raised token]`."""
    d_model = W_E.shape[1]
    W_V, W_O = built(answer, W_V=(d_model, "d_head"), W_O=("d_head", d_model))
    return W_E @ W_V @ W_O @ W_U


def cases(generator: Generator) -> Iterator[Case]:
    """Unrelated random embeddings and unembeddings."""
    for vocab, d_model in [(2, 3), (3, 5), (4, 6), (5, 7), (4, 9)]:
        yield {"W_E": normal(generator, vocab, d_model), "W_U": normal(generator, d_model, vocab)}


def transposes(W_E, W_U):
    """You undo both matrices by their transposes. A transpose undoes a matrix only if its rows are orthonormal."""
    return W_E.T, W_U.T


def W_E_transposed(W_E, W_U):
    """You undo W_E by its transpose. A transpose undoes a matrix only if its rows are orthonormal."""
    return W_E.T, pinv(W_U)


def W_U_transposed(W_E, W_U):
    """You undo W_U by its transpose. A transpose undoes a matrix only if its columns are orthonormal."""
    return pinv(W_E), W_U.T


def vectors_of_length_1(W_E, W_U):
    """You divide by the lengths of the embeddings. Vectors of length 1 are still not orthogonal."""
    return (W_E / W_E.norm(dim=1, keepdim=True)).T, (W_U / W_U.norm(dim=0)).T


def lowered(W_E, W_U):
    """The head lowers the logit of the token that it attends to. Which sign is wrong?"""
    return pinv(W_E), -pinv(W_U)


def stream_copied(W_E, W_U):
    """The head copies the stream, so the result is W_E @ W_U. These two matrices are unrelated."""
    eye = torch.eye(W_E.shape[1], dtype=W_E.dtype)
    return eye, eye


def exchanged(W_E, W_U):
    """Each matrix is undone at the place of the other. W_V meets W_E: which of the two does it have to undo?"""
    return pinv(W_U).T, pinv(W_E).T


def square_inverses(W_E, W_U):
    """W_E and W_U are not square, so they have no inverse. `torch.linalg.pinv` undoes them on one side."""
    return torch.linalg.inv(W_E), torch.linalg.inv(W_U)


def not_undone(W_E, W_U):
    """You return W_U and W_E themselves. W_E @ W_V has to be the identity on tokens."""
    return W_U, W_E


EXERCISE = Exercise(
    name="copying_head",
    title="a head that copies, by hand",
    section="2-qk-and-ov/what-a-head-writes#the-full-ov-circuit-in-four-matrices",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("source token", "raised token"),
    mistakes=(
        transposes, W_E_transposed, W_U_transposed, vectors_of_length_1, lowered, stream_copied,
        exchanged, square_inverses, not_undone,
    ),
)  # fmt: skip


def check_copying_head(answer: Any) -> Result:
    """Check that `answer(W_E, W_U)` returns `W_V, W_O` whose full OV circuit $W_E W_V W_O W_U$ is the identity.

    Parameters
    ----------
    answer : function of `W_E [vocab, d_model]` and `W_U [d_model, vocab]`, both of full rank, `vocab < d_model`.
        It returns `W_V [d_model, d_head]` and `W_O [d_head, d_model]`, with any `d_head`.

    Source: this book.
    """
    return check(EXERCISE, answer)
