"""The part of the stream that a head can read."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, normal


def solution(x: Tensor, W: Tensor) -> Tensor:
    """Make the columns of W orthonormal one after another, and sum the parts of x along them."""
    basis: list[Tensor] = []
    projection = torch.zeros_like(x)
    for column in W.T:
        for direction in basis:
            column = column - (column @ direction) * direction
        direction = column / column.norm()
        basis.append(direction)
        projection = projection + torch.outer(x @ direction, direction)
    return projection


def cases(generator: Generator) -> Iterator[Case]:
    """Random streams and matrices of full rank."""
    for pos, d_model, d_head in [(2, 4, 2), (5, 3, 2), (3, 7, 4), (4, 8, 3), (4, 4, 2)]:
        yield {"x": normal(generator, pos, d_model), "W": normal(generator, d_model, d_head)}


def columns_not_orthonormal(x, W):
    """You compute x @ W @ W.T. That is a projection only if the columns of W are orthonormal, and they are not."""
    return x @ W @ W.T


def columns_of_length_1(x, W):
    """Your columns have length 1, but they are not orthogonal. Their common directions are counted twice."""
    return columns_not_orthonormal(x, W / W.norm(dim=0))


def two_bases(x, W):
    """You read with W and write with another basis. Both have to be the same orthonormal directions."""
    return x @ W @ torch.linalg.qr(W)[0].T


def row_space(x, W):
    """You project onto the row space of W. x @ W takes dot products of x with the columns of W, so the column space is needed."""
    basis = torch.linalg.qr(W.T)[0]
    return x @ basis @ basis.T


def everything(x, W):
    """You return x itself. A basis of the column space has d_head vectors; the full U of an SVD has d_model."""
    return x.clone()


def unread_part(x, W):
    """This is the part that the head cannot read. Which part of x has the same product with W as x itself?"""
    return x - solution(x, W)


def product(x, W):
    """This is x @ W, which has d_head coordinates. Multiply them by directions of the stream to return to d_model coordinates."""
    return x @ W


def coordinates(x, W):
    """These are coordinates in a basis. Multiply them by the directions of that basis to get back into the stream."""
    return x @ torch.linalg.qr(W)[0]


def coordinates_in_W(x, W):
    """These are d_head coordinates. Multiply them by W.T to get back into the stream."""
    return x @ torch.linalg.pinv(W).T


EXERCISE = Exercise(
    name="read_part",
    title="what a head can read",
    section="1-residual-stream/appendix#heads-read-and-write-small-subspaces",
    solution=solution,
    cases=cases,
    axes=("position", "coordinate"),
    mistakes=(
        columns_not_orthonormal, columns_of_length_1, two_bases, row_space, everything,
        unread_part, product, coordinates, coordinates_in_W,
    ),
)  # fmt: skip


def check_read_part(answer: Any) -> Result:
    """Check that `answer(x, W)` returns the part of `x` that a head can read through `x @ W`.

    Parameters
    ----------
    answer : function of `x [pos, d_model]` and `W [d_model, d_head]` of full rank, `d_head < d_model`. It returns
        `[pos, d_model]`, the orthogonal projection of each row on the column space of `W`.

    Source: this book.
    """
    return check(EXERCISE, answer)
