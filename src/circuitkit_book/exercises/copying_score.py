"""Exercise 2.4: the copying score of a head, from a small matrix."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Generator, Tensor
from torch.linalg import eigvals, svdvals

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, normal


def solution(W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Tensor:
    """Multiply in the other order: AB and BA have the same nonzero eigenvalues."""
    values = eigvals(W_O @ W_U @ W_E @ W_V)
    return values.real.sum() / values.abs().sum()


def cases(generator: Generator) -> Iterator[Case]:
    """Random matrices; the score takes both signs."""
    for vocab, d_model, d_head in [(4, 3, 2), (5, 4, 3), (7, 5, 3), (8, 6, 4), (6, 6, 6)]:
        yield {
            "W_E": normal(generator, vocab, d_model),
            "W_V": normal(generator, d_model, d_head),
            "W_O": normal(generator, d_head, d_model),
            "W_U": normal(generator, d_model, vocab),
        }


def score(values):
    """Return the score of some eigenvalues."""
    return values.real.sum() / values.abs().sum()


def eigenvalues(W_E, W_V, W_O, W_U):
    """Return the right eigenvalues."""
    return eigvals(W_O @ W_U @ W_E @ W_V)


def OV_alone(W_E, W_V, W_O, W_U):
    """These are the eigenvalues of W_V @ W_O alone. The score is about tokens, so W_E and W_U belong to it."""
    return score(eigvals(W_O @ W_V))


def without_the_head(W_E, W_V, W_O, W_U):
    """The head is missing: W_E @ W_U is the direct path. Where do W_V and W_O belong?"""
    return score(eigvals(W_U @ W_E))


def other_product(W_E, W_V, W_O, W_U):
    """You multiply in an order that belongs to another table. Move W_E @ W_V behind the other two: W_O @ W_U @ W_E @ W_V."""
    return score(eigvals(W_V.T @ W_U @ W_E @ W_O.T))


def transposed_product(W_E, W_V, W_O, W_U):
    """You transposed some of the matrices. Move W_E @ W_V behind the other two, without a transpose."""
    return score(eigvals(W_O @ W_E.T @ W_U.T @ W_V))


def W_E_for_W_U(W_E, W_V, W_O, W_U):
    """W_E stands in the place of W_U. Embedding and unembedding are two different matrices here."""
    return score(eigvals(W_O @ W_E.T @ W_E @ W_V))


def symmetric(W_E, W_V, W_O, W_U):
    """`eigvalsh` is for symmetric matrices, and this one is not symmetric. Use `eigvals`."""
    return score(torch.linalg.eigvalsh(W_O @ W_U @ W_E @ W_V))


def no_sign(W_E, W_V, W_O, W_U):
    """Your score is always 1: singular values, and sizes, have no sign. Use eigenvalues."""
    values = svdvals(W_O @ W_U @ W_E @ W_V)
    return values.sum() / values.sum()


def over_singular_values(W_E, W_V, W_O, W_U):
    """You divide by the singular values. Divide by the sum of the absolute values of the eigenvalues."""
    return eigenvalues(W_E, W_V, W_O, W_U).real.sum() / svdvals(W_O @ W_U @ W_E @ W_V).sum()


def diagonal_of_the_table(W_E, W_V, W_O, W_U):
    """You use the diagonal of the table. Its sum is that of the eigenvalues, but its absolute values are not theirs."""
    return score((W_E @ W_V @ W_O @ W_U).diagonal() + 0j)


def diagonal(W_E, W_V, W_O, W_U):
    """You use the diagonal of the small matrix. Its sum is that of the eigenvalues, but its absolute values are not theirs."""
    return score((W_O @ W_U @ W_E @ W_V).diagonal() + 0j)


def absolute_sum(W_E, W_V, W_O, W_U):
    """You take the absolute value of the sum, so the score is never negative. Sum the real parts with their signs."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.sum().abs() / values.abs().sum()


def absolute_real_parts(W_E, W_V, W_O, W_U):
    """You sum absolute values of the real parts, so the score is never negative. Keep their signs."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.real.abs().sum() / values.abs().sum()


def positive_only(W_E, W_V, W_O, W_U):
    """You sum only the positive real parts. Negative eigenvalues count against copying."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.real.clamp_min(0).sum() / values.abs().sum()


def over_real_parts(W_E, W_V, W_O, W_U):
    """You divide by absolute values of the real parts. The absolute value of a complex number includes its imaginary part."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.real.sum() / values.real.abs().sum()


def over_the_root_of_squares(W_E, W_V, W_O, W_U):
    """You divide by the root of the summed squares. Sum the absolute values as they are."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.real.sum() / values.abs().square().sum().sqrt()


def over_their_number(W_E, W_V, W_O, W_U):
    """You divide by the number of eigenvalues. Divide by the sum of their absolute values, so that size does not matter."""
    return eigenvalues(W_E, W_V, W_O, W_U).real.mean()


def not_divided(W_E, W_V, W_O, W_U):
    """You do not divide. Divide by the sum of the absolute values, so that the score lies between -1 and 1."""
    return eigenvalues(W_E, W_V, W_O, W_U).real.sum()


def over_the_largest(W_E, W_V, W_O, W_U):
    """You divide by the largest absolute value. Divide by the sum of all of them."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.real.sum() / values.abs().max()


def over_the_norm(W_E, W_V, W_O, W_U):
    """You divide by the norm of the matrix. Divide by the sum of the absolute values of its eigenvalues."""
    return eigenvalues(W_E, W_V, W_O, W_U).real.sum() / (W_O @ W_U @ W_E @ W_V).norm()


def over_the_absolute_sum(W_E, W_V, W_O, W_U):
    """You divide by the absolute value of the sum. Take absolute values first, then sum them."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.real.sum() / values.sum().abs()


def largest_only(W_E, W_V, W_O, W_U):
    """You use only the largest eigenvalue. The score sums over all of them."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values[values.abs().argmax()].real / values.abs().sum()


def share_of_positive(W_E, W_V, W_O, W_U):
    """You count positive eigenvalues. The score weights each eigenvalue by its size."""
    return (eigenvalues(W_E, W_V, W_O, W_U).real > 0).double().mean()


def mean_of_signs(W_E, W_V, W_O, W_U):
    """You average signs. The score weights each eigenvalue by its size."""
    return eigenvalues(W_E, W_V, W_O, W_U).real.sign().mean()


def each_divided(W_E, W_V, W_O, W_U):
    """You divide each eigenvalue by its own absolute value. Sum first, then divide the two sums."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return (values.real / values.abs()).mean()


def imaginary_parts(W_E, W_V, W_O, W_U):
    """You use the imaginary parts. They describe rotations; the sign of the real part stands for copying."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.imag.abs().sum() / values.abs().sum()


def objection(answer: Any, case: Case) -> str:
    """Return a sentence if the answer computes eigenvalues of a large matrix, or returns a complex number."""
    arguments = [value.clone() for value in case.values()]
    with (
        patch.object(torch.linalg, "eigvals", wraps=torch.linalg.eigvals) as values_of,
        patch.object(torch.linalg, "eig", wraps=torch.linalg.eig) as vectors_of,
    ):
        returned = answer(*arguments)
    calls = [*values_of.call_args_list, *vectors_of.call_args_list]
    width = max((call.args[0].shape[-1] for call in calls if call.args), default=0)
    d_head = case["W_V"].shape[1]
    if width > d_head:
        text = f"The number is right, but it comes from a matrix of width {width}."
        return f"{text} Use a [d_head, d_head] matrix, here of width {d_head}."
    if isinstance(returned, Tensor) and returned.is_complex():
        return "The number is right, but it is complex. Return its real part."
    return ""


EXERCISE = Exercise(
    number="2.4",
    name="copying_score",
    title="the copying score without the table",
    section="02-qk-and-ov-circuits#what-a-head-says-the-ov-circuit",
    solution=solution,
    cases=cases,
    objection=objection,
    mistakes=(
        OV_alone, without_the_head, other_product, transposed_product, W_E_for_W_U, symmetric, no_sign,
        over_singular_values, diagonal_of_the_table, diagonal, absolute_sum, absolute_real_parts,
        positive_only, over_real_parts, over_the_root_of_squares, over_their_number, not_divided,
        over_the_largest, over_the_norm, over_the_absolute_sum, largest_only, share_of_positive,
        mean_of_signs, each_divided, imaginary_parts,
    ),
)  # fmt: skip


def check_copying_score(answer: Any) -> Result:
    r"""Exercise 2.4: `answer(W_E, W_V, W_O, W_U)` returns the copying score of a head from a `[d_head, d_head]` matrix.

    Parameters
    ----------
    answer : function of `W_E [vocab, d_model]`, `W_V [d_model, d_head]`, `W_O [d_head, d_model]` and
        `W_U [d_model, vocab]`. It returns one number, from the eigenvalues of the full OV circuit.

    The score is $\\sum_i \\operatorname{Re}\\lambda_i / \\sum_i |\\lambda_i|$.

    Source: this book.
    """
    return check(EXERCISE, answer)
