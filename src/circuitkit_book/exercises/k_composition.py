"""Exercise 2.5: the K-composition score of two heads."""

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


def entry_by_entry_transposed(W_OV, W_QK):
    """`*` multiplies entry by entry. Heads in a row are a matrix product, `@`."""
    return over_norms(W_OV * W_QK.T, W_OV, W_QK)


def added(W_OV, W_QK):
    """You add the matrices. Heads in a row multiply."""
    return over_norms(W_OV + W_QK, W_OV, W_QK)


def early_head_twice(W_OV, W_QK):
    """The early head enters twice, in queries and in keys. K-composition concerns the keys alone."""
    return over_norms(W_OV @ W_QK @ W_OV.T, W_OV, W_QK)


def spectral_norms(W_OV, W_QK):
    """You use the largest singular value. The Frobenius norm includes all of them."""
    top = matrix_norm(W_OV @ W_QK.T, 2)
    return top / (matrix_norm(W_OV, 2) * matrix_norm(W_QK, 2))


def spectral_product(W_OV, W_QK):
    """The product is measured by its largest singular value. Use the Frobenius norm for all three."""
    return matrix_norm(W_OV @ W_QK.T, 2) / (matrix_norm(W_OV) * matrix_norm(W_QK))


def nuclear_norms(W_OV, W_QK):
    """You sum singular values. The Frobenius norm is the root of their summed squares."""
    top = matrix_norm(W_OV @ W_QK.T, "nuc")
    return top / (matrix_norm(W_OV, "nuc") * matrix_norm(W_QK, "nuc"))


def sums_of_sizes(W_OV, W_QK):
    """You sum absolute values of entries. The Frobenius norm is the root of the summed squares."""
    return (W_OV @ W_QK.T).abs().sum() / (W_OV.abs().sum() * W_QK.abs().sum())


def largest_entries(W_OV, W_QK):
    """You use the largest entries. The Frobenius norm is the root of the summed squares."""
    return (W_OV @ W_QK.T).abs().max() / (W_OV.abs().max() * W_QK.abs().max())


def trace(W_OV, W_QK):
    """You use a trace, in which entries of both signs cancel. The Frobenius norm squares the entries first."""
    return (W_OV @ W_QK.T).trace() / (matrix_norm(W_OV) * matrix_norm(W_QK))


def squared(W_OV, W_QK):
    """The score is squared: the root is missing. The Frobenius norm is the root of the summed squares."""
    return solution(W_OV, W_QK).square()


def product_squared(W_OV, W_QK):
    """The norm of the product is squared, and the other two are not. Take its root."""
    return (W_OV @ W_QK.T).square().sum() / (matrix_norm(W_OV) * matrix_norm(W_QK))


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


def over_d_model(W_OV, W_QK):
    """You divide by d_model. Divide by the norms of both matrices."""
    return matrix_norm(W_OV @ W_QK.T) / len(W_OV)


def wrong_brackets(W_OV, W_QK):
    """You divide by one norm and multiply by the other. Put brackets around the product of the norms."""
    return matrix_norm(W_OV @ W_QK.T) / matrix_norm(W_OV) * matrix_norm(W_QK)


def over_the_baseline(W_OV, W_QK):
    """You compare with the score of random matrices. The score itself is asked for."""
    return solution(W_OV, W_QK) * len(W_OV) ** 0.5


EXERCISE = Exercise(
    number="2.5",
    name="k_composition",
    title="K-composition",
    section="02-qk-and-ov-circuits#heads-in-a-row",
    solution=solution,
    cases=cases,
    mistakes=(
        q_composition, reading_side_of_OV, both_wrong_sides, entry_by_entry, entry_by_entry_transposed, added,
        early_head_twice, spectral_norms, spectral_product, nuclear_norms, sums_of_sizes, largest_entries,
        trace, squared, product_squared, not_divided, over_QK_only, over_OV_only, over_the_sum, over_d_model,
        wrong_brackets, over_the_baseline,
    ),
)  # fmt: skip


def check_k_composition(answer: Any) -> Result:
    """Exercise 2.5: `answer(W_OV, W_QK)` returns the K-composition score of an early OV and a late QK circuit.

    Parameters
    ----------
    answer : function of `W_OV` and `W_QK`, both `[d_model, d_model]`. It returns one number between 0 and 1.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    return check(EXERCISE, answer)
