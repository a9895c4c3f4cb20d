"""The K-composition score of two heads."""

from collections.abc import Iterator
from typing import Any

from torch import Generator, Tensor
from torch.linalg import matrix_norm

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, normal


def solution(W_OV: Tensor, W_QK: Tensor) -> Tensor:
    """Put the early head's output in as the source of the later head's scores: x_dst W_QK (y W_OV)^T."""
    product = W_QK @ W_OV.T
    return product.square().sum().sqrt() / (W_QK.square().sum().sqrt() * W_OV.square().sum().sqrt())


def cases(generator: Generator) -> Iterator[Case]:
    """Random matrices of low rank, in part related to each other."""
    for rank, d_model in [(1, 3), (2, 4), (2, 5), (3, 7), (3, 8)]:
        W_OV = normal(generator, d_model, rank) @ normal(generator, rank, d_model)
        W_QK = normal(generator, d_model, rank) @ normal(generator, rank, d_model)
        yield {"W_OV": W_OV, "W_QK": W_QK}


def over_norms(product, W_OV, W_QK):
    """Return the norm of a product, divided by the norms of both matrices."""
    return matrix_norm(product) / (matrix_norm(W_OV) * matrix_norm(W_QK))


def q_composition(W_OV, W_QK):
    """This is Q-composition: W_QK is not transposed. Keys are read with the right side of W_QK."""
    return over_norms(W_OV @ W_QK, W_OV, W_QK)


def reading_side_of_OV(W_OV, W_QK):
    """W_QK meets the side with which the early head reads. The early head writes with the right side of W_OV."""
    return over_norms(W_QK @ W_OV, W_OV, W_QK)


def both_wrong_sides(W_OV, W_QK):
    """W_OV is transposed, so W_QK meets the side with which the early head reads. It writes with its right side."""
    return over_norms(W_OV.T @ W_QK, W_OV, W_QK)


def entry_by_entry(W_OV, W_QK):
    """`*` multiplies entry by entry. Heads in a row are a matrix product, `@`."""
    return over_norms(W_OV * W_QK, W_OV, W_QK)


def spectral_norms(W_OV, W_QK):
    """You use the largest singular value. The Frobenius norm includes all of them."""
    top = matrix_norm(W_OV @ W_QK.T, 2)
    return top / (matrix_norm(W_OV, 2) * matrix_norm(W_QK, 2))


def squared(W_OV, W_QK):
    """The score is squared: the root is missing. The Frobenius norm is the root of the summed squares."""
    return solution(W_OV, W_QK).square()


def not_divided(W_OV, W_QK):
    """You do not divide. Large matrices would always have a high score; divide by both norms."""
    return matrix_norm(W_OV @ W_QK.T)


def over_QK_only(W_OV, W_QK):
    """You divide only by the norm of W_QK. If W_OV is doubled, the score has to stay the same."""
    return matrix_norm(W_OV @ W_QK.T) / matrix_norm(W_QK)


def over_OV_only(W_OV, W_QK):
    """You divide only by the norm of W_OV. If W_QK is doubled, the score has to stay the same."""
    return matrix_norm(W_OV @ W_QK.T) / matrix_norm(W_OV)


def over_the_sum(W_OV, W_QK):
    """You divide by the sum of the norms. Divide by their product."""
    return matrix_norm(W_OV @ W_QK.T) / (matrix_norm(W_OV) + matrix_norm(W_QK))


def wrong_brackets(W_OV, W_QK):
    """You divide by one norm and multiply by the other. Put brackets around the product of the norms."""
    return matrix_norm(W_OV @ W_QK.T) / matrix_norm(W_OV) * matrix_norm(W_QK)


EXERCISE = Exercise(
    name="k_composition",
    title="K-composition",
    section="2-qk-and-ov/paths-and-ablation#cut-one-path",
    solution=solution,
    cases=cases,
    mistakes=(
        q_composition, reading_side_of_OV, both_wrong_sides, entry_by_entry, spectral_norms,
        squared, not_divided, over_QK_only, over_OV_only, over_the_sum, wrong_brackets,
    ),
)  # fmt: skip


def check_k_composition(answer: Any) -> Result:
    """Check that `answer(W_OV, W_QK)` returns the K-composition score of an early OV and a late QK circuit.

    Parameters
    ----------
    answer : function of `W_OV` and `W_QK`, both `[d_model, d_model]`. It returns one number between 0 and 1.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    return check(EXERCISE, answer)
