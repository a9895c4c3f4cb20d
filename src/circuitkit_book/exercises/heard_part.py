"""Exercise 1.3: the part of the stream that a head can read."""

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


def rows_of_length_1(x, W):
    """You divide by the lengths of the rows of W. The directions that the head reads are its columns."""
    return columns_not_orthonormal(x, W / W.norm(dim=1, keepdim=True))


def divided_by_one_length(x, W):
    """You divide W by one number. Its columns are still not orthonormal."""
    return columns_not_orthonormal(x, W / W.norm())


def singular_values_left_in(x, W):
    """The singular values are still in your result. Only the directions are asked for, not how strongly they are read."""
    left, sizes, _ = torch.linalg.svd(W, full_matrices=False)
    return x @ left * sizes @ left.T


def two_bases(x, W):
    """You read with W and write with another basis. Both have to be the same orthonormal directions."""
    return x @ W @ torch.linalg.qr(W)[0].T


def two_bases_exchanged(x, W):
    """You read with an orthonormal basis and write with W. Both have to be the same orthonormal directions."""
    return x @ torch.linalg.qr(W)[0] @ W.T


def everything(x, W):
    """You return x itself. A basis of the column space has d_head vectors; the full U of an SVD has d_model."""
    return x.clone()


def last_direction_missing(x, W):
    """The last direction of the basis is missing. The column space has d_head dimensions."""
    basis = torch.linalg.qr(W)[0][:, :-1]
    return x @ basis @ basis.T


def first_direction_only(x, W):
    """You use only the first direction of the basis. The column space has d_head dimensions."""
    basis = torch.linalg.svd(W)[0][:, :1]
    return x @ basis @ basis.T


def unread_part(x, W):
    """This is the part that the head cannot read. Which part of x has the same product with W as x itself?"""
    return x - solution(x, W)


def mirrored(x, W):
    """You subtract the unread part twice. Subtract it once."""
    return 2 * solution(x, W) - x


def product(x, W):
    """This is x @ W, which has d_head coordinates. Bring them back into the stream."""
    return x @ W


def coordinates(x, W):
    """These are coordinates in a basis. Multiply them by the directions of that basis to get back into the stream."""
    return x @ torch.linalg.qr(W)[0]


def coordinates_in_W(x, W):
    """These are d_head coordinates. Multiply them by W.T to get back into the stream."""
    return x @ torch.linalg.pinv(W).T


def first_dimensions(x, W):
    """You keep the first d_head coordinates of x. The head reads directions, which mix all coordinates."""
    projection = torch.zeros_like(x)
    projection[:, : W.shape[1]] = x[:, : W.shape[1]]
    return projection


EXERCISE = Exercise(
    number="1.3",
    name="heard_part",
    title="what a head can read",
    section="01-residual-stream#heads-read-little-and-write-little",
    solution=solution,
    cases=cases,
    axes=("position", "coordinate"),
    mistakes=(
        columns_not_orthonormal, columns_of_length_1, rows_of_length_1, divided_by_one_length,
        singular_values_left_in, two_bases, two_bases_exchanged, everything,
        last_direction_missing, first_direction_only, unread_part, mirrored, product, coordinates,
        coordinates_in_W, first_dimensions,
    ),
)  # fmt: skip


def check_heard_part(answer: Any) -> Result:
    """Exercise 1.3: `answer(x, W)` returns the part of `x` that a head can read through `x @ W`.

    Parameters
    ----------
    answer : function of `x [pos, d_model]` and `W [d_model, d_head]` of full rank, `d_head < d_model`. It returns
        `[pos, d_model]`, the orthogonal projection of each row on the column space of `W`.

    Source: this book.
    """
    return check(EXERCISE, answer)
