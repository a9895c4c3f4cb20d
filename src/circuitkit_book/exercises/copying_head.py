"""Exercise 2.3: a head whose full OV circuit is the identity."""

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


def orthonormal(W):
    """Return the transpose of W with all singular values set to 1."""
    left, _, right = torch.linalg.svd(W, full_matrices=False)
    return right.T @ left.T


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


def squared_lengths(W_E, W_U):
    """You divide by the squared lengths of the embeddings. This gives 1 on the diagonal, but not 0 elsewhere."""
    return (W_E / W_E.square().sum(1, keepdim=True)).T, (W_U / W_U.square().sum(0)).T


def W_E_squared_lengths(W_E, W_U):
    """You undo W_E by its transpose and its squared lengths. Embeddings are not orthogonal to each other."""
    return (W_E / W_E.square().sum(1, keepdim=True)).T, pinv(W_U)


def W_U_squared_lengths(W_E, W_U):
    """You undo W_U by its transpose and its squared lengths. Its columns are not orthogonal to each other."""
    return pinv(W_E), (W_U / W_U.square().sum(0)).T


def one_length(W_E, W_U):
    """You undo both matrices by a transpose and one number. One number does not undo a matrix."""
    return W_E.T / W_E.norm(), W_U.T / W_U.norm()


def no_singular_values(W_E, W_U):
    """The singular values are left out. They have to be divided out."""
    return orthonormal(W_E), orthonormal(W_U)


def lowered(W_E, W_U):
    """The head lowers the logit of the token that it attends to. Which sign is wrong?"""
    return pinv(W_E), -pinv(W_U)


def next_token(W_E, W_U):
    """The head raises the next token in the vocabulary. Row b needs its 1 in column b."""
    return pinv(W_E), pinv(W_U).roll(1, 0)


def previous_token(W_E, W_U):
    """The head raises the previous token in the vocabulary. Row b needs its 1 in column b."""
    return pinv(W_E), pinv(W_U).roll(-1, 0)


def stream_copied(W_E, W_U):
    """The head copies the stream, so the result is W_E @ W_U. These two matrices are unrelated."""
    eye = torch.eye(W_E.shape[1], dtype=W_E.dtype)
    return eye, eye


def exchanged(W_E, W_U):
    """Each matrix is undone at the place of the other. W_V meets W_E: which of the two does it have to undo?"""
    return pinv(W_U).T, pinv(W_E).T


def W_O_undoes_W_E(W_E, W_U):
    """W_O undoes the embedding. What W_O writes is read by W_U."""
    return pinv(W_E), pinv(W_E).T


def not_undone(W_E, W_U):
    """You return W_U and W_E themselves. W_E @ W_V has to be the identity on tokens."""
    return W_U, W_E


def product_undone_in_one_matrix(W_E, W_U):
    """You invert W_E @ W_U, which is [vocab, vocab], and write it into one side. Undo each matrix by itself."""
    return W_E.T, pinv(W_E @ W_U) @ W_U.T


def rank_1_short(W_E, W_U):
    """One inner dimension is missing. Each token needs one: d_head = vocab."""
    return pinv(W_E)[:, :-1], pinv(W_U)[:-1]


def ridge(W_E, W_U):
    """You add something before you invert. Both matrices have full rank, so they can be undone exactly."""
    eye = torch.eye(len(W_E), dtype=W_E.dtype)
    W_V, W_O = torch.linalg.inv(W_E @ W_E.T + eye), torch.linalg.inv(W_U.T @ W_U + eye)
    return W_E.T @ W_V, W_O @ W_U.T


EXERCISE = Exercise(
    number="2.3",
    name="copying_head",
    title="a head that copies, by hand",
    section="02-qk-and-ov-circuits#what-a-head-says-the-ov-circuit",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("source token", "raised token"),
    mistakes=(
        transposes, W_E_transposed, W_U_transposed, vectors_of_length_1, squared_lengths, W_E_squared_lengths,
        W_U_squared_lengths, one_length, no_singular_values, lowered, next_token, previous_token,
        stream_copied, exchanged, W_O_undoes_W_E, not_undone, product_undone_in_one_matrix, rank_1_short,
        ridge,
    ),
)  # fmt: skip


def check_copying_head(answer: Any) -> Result:
    """Exercise 2.3: `answer(W_E, W_U)` returns `W_V, W_O` whose full OV circuit $W_E W_V W_O W_U$ is the identity.

    Parameters
    ----------
    answer : function of `W_E [vocab, d_model]` and `W_U [d_model, vocab]`, both of full rank, `vocab < d_model`.
        It returns `W_V [d_model, d_head]` and `W_O [d_head, d_model]`, with any `d_head`.

    Source: this book.
    """
    return check(EXERCISE, answer)
