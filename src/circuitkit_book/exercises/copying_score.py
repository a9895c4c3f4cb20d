"""The copying score of a head, from a small matrix."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy
import torch
from torch import Generator, Tensor
from torch.linalg import eigvals, svdvals
from torch.utils._python_dispatch import TorchDispatchMode

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


def transposed_product(W_E, W_V, W_O, W_U):
    """You transposed some of the matrices. Move W_E @ W_V behind the other two, without a transpose."""
    return score(eigvals(W_O @ W_E.T @ W_U.T @ W_V))


def symmetric(W_E, W_V, W_O, W_U):
    """`eigvalsh` is for symmetric matrices, and this one is not symmetric. Use `eigvals`."""
    return score(torch.linalg.eigvalsh(W_O @ W_U @ W_E @ W_V))


def no_sign(W_E, W_V, W_O, W_U):
    """Your score is always 1: singular values, and sizes, have no sign. Use eigenvalues."""
    values = svdvals(W_O @ W_U @ W_E @ W_V)
    return values.sum() / values.sum()


def diagonal(W_E, W_V, W_O, W_U):
    """You use the diagonal of the small matrix. Its sum is that of the eigenvalues, but its absolute values are not theirs."""
    return score((W_O @ W_U @ W_E @ W_V).diagonal() + 0j)


def absolute_sum(W_E, W_V, W_O, W_U):
    """You take the absolute value of the sum, so the score is never negative. Sum the real parts with their signs."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.sum().abs() / values.abs().sum()


def over_real_parts(W_E, W_V, W_O, W_U):
    """You divide by absolute values of the real parts. The absolute value of a complex number includes its imaginary part."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return values.real.sum() / values.real.abs().sum()


def over_their_number(W_E, W_V, W_O, W_U):
    """You divide by the number of eigenvalues. Divide by the sum of their absolute values, so that size does not matter."""
    return eigenvalues(W_E, W_V, W_O, W_U).real.mean()


def not_divided(W_E, W_V, W_O, W_U):
    """You do not divide. Divide by the sum of the absolute values, so that the score lies between -1 and 1."""
    return eigenvalues(W_E, W_V, W_O, W_U).real.sum()


def share_of_positive(W_E, W_V, W_O, W_U):
    """You count positive eigenvalues. The score weights each eigenvalue by its size."""
    return (eigenvalues(W_E, W_V, W_O, W_U).real > 0).double().mean()


def each_divided(W_E, W_V, W_O, W_U):
    """You divide each eigenvalue by its own absolute value. Sum first, then divide the two sums."""
    values = eigenvalues(W_E, W_V, W_O, W_U)
    return (values.real / values.abs()).mean()


class Widths(TorchDispatchMode):
    """Notes the width of every matrix whose eigenvalues torch computes, under whatever name it was imported."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = [0]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "linalg_eig" in str(func):
            self.widths.append(args[0].shape[-1])
        return func(*args, **(kwargs or {}))


def objection(answer: Any, case: Case) -> str:
    """Return a sentence if the answer computes eigenvalues of a large matrix, or returns a complex number."""
    arguments = [value.clone() for value in case.values()]
    with (
        patch.object(numpy.linalg, "eigvals", wraps=numpy.linalg.eigvals) as values_of,
        patch.object(numpy.linalg, "eig", wraps=numpy.linalg.eig) as vectors_of,
        Widths() as in_torch,
    ):
        returned = answer(*arguments)
    calls = [*values_of.call_args_list, *vectors_of.call_args_list]
    given = [[*call.args, *call.kwargs.values()] for call in calls]
    in_numpy = [values[0].shape[-1] for values in given if values]
    width = max(in_torch.widths + in_numpy)
    d_head = case["W_V"].shape[1]
    if width > d_head:
        text = f"The number is right, but it comes from a matrix of width {width}."
        return f"{text} Use a [d_head, d_head] matrix, here of width {d_head}."
    if isinstance(returned, Tensor) and returned.is_complex():
        return "The number is right, but it is complex. Return its real part."
    return ""


EXERCISE = Exercise(
    name="copying_score",
    title="the copying score without the table",
    section="2-qk-and-ov/what-a-head-writes#a-head-that-copies",
    solution=solution,
    cases=cases,
    objection=objection,
    mistakes=(
        OV_alone, without_the_head, transposed_product, symmetric, no_sign, diagonal,
        absolute_sum, over_real_parts, over_their_number, not_divided, share_of_positive,
        each_divided,
    ),
)  # fmt: skip


def check_copying_score(answer: Any) -> Result:
    r"""Check that `answer(W_E, W_V, W_O, W_U)` returns the copying score of a head from a `[d_head, d_head]` matrix.

    Parameters
    ----------
    answer : function of `W_E [vocab, d_model]`, `W_V [d_model, d_head]`, `W_O [d_head, d_model]` and
        `W_U [d_model, vocab]`. It returns one number, from the eigenvalues of the full OV circuit.

    The score is $\\sum_i \\operatorname{Re}\\lambda_i / \\sum_i |\\lambda_i|$.

    Source: this book.
    """
    return check(EXERCISE, answer)
