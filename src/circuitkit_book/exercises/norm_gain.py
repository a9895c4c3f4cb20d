"""The gain with which RMSNorm keeps the bias token."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, built, normal


def gain(stream: float, bias: float, d_model: int) -> Tensor:
    """Return a gain with one value for the stream and one for the bias coordinate."""
    return torch.tensor([stream] * d_model + [bias], dtype=torch.float64)


def solution(d_model: int) -> Tensor:
    """The mean of a token's squares shrinks by D / (D + 1); that of the bias token is 1 / (D + 1)."""
    return gain((d_model / (d_model + 1)) ** 0.5, (1 / (d_model + 1)) ** 0.5, d_model)


def observe(answer: Any, d_model: int) -> Tensor:
    """Compute RMSNorm with the gain on three tokens and the bias token, `[row, coordinate]`."""
    (factors,) = built([answer], gain=(d_model + 1,))
    rows = torch.zeros(4, d_model + 1, dtype=torch.float64)
    rows[:3, :-1], rows[3, -1] = normal(Generator().manual_seed(5), 3, d_model), 1.0
    return rows / rows.square().mean(1, keepdim=True).sqrt() * factors


def cases(generator: Generator) -> Iterator[Case]:
    """Five widths."""
    for d_model in (2, 3, 5, 8, 9):
        yield {"d_model": d_model}


def all_ones(d_model):
    """The gain is 1 everywhere. A token has a 0 in the new coordinate: how does that change the mean of its squares?"""
    return gain(1.0, 1.0, d_model)


def both_inverted(d_model):
    """Both gains are inverted: this is what the norm does to the rows. The gain has to undo it."""
    return 1 / solution(d_model)


def exchanged(d_model):
    """The gains of the stream and of the bias coordinate are exchanged."""
    stream, bias = solution(d_model)[[0, -1]].tolist()
    return gain(bias, stream, d_model)


def no_roots(d_model):
    """The roots are missing. The norm divides by the root of a mean square."""
    return solution(d_model).square()


def stream_of_one(d_model):
    """The gain of the stream is 1. A token has a 0 in the new coordinate: how does that change the mean of its squares?"""
    return gain(1.0, (1 / (d_model + 1)) ** 0.5, d_model)


def stream_inverted(d_model):
    """The gain of the stream is inverted. A mean over D + 1 coordinates is smaller, so the row comes out too long."""
    return gain(((d_model + 1) / d_model) ** 0.5, (1 / (d_model + 1)) ** 0.5, d_model)


def same_everywhere(d_model):
    """The gain of the stream stands at the bias coordinate, too. The bias token has one 1 and D zeros."""
    return gain((d_model / (d_model + 1)) ** 0.5, (d_model / (d_model + 1)) ** 0.5, d_model)


def bias_of_one(d_model):
    """The gain of the bias coordinate is 1. The mean of the bias token's squares is 1 / (D + 1): what becomes of the 1?"""
    return gain((d_model / (d_model + 1)) ** 0.5, 1.0, d_model)


def bias_inverted(d_model):
    """The gain of the bias coordinate is inverted. The norm makes the 1 larger, and the gain has to bring it back."""
    return gain((d_model / (d_model + 1)) ** 0.5, (d_model + 1) ** 0.5, d_model)


def bias_first(d_model):
    """You take the bias coordinate to be the first. It is the last."""
    return solution(d_model).roll(1)


def bias_of_root_of_D(d_model):
    """The gain of the bias coordinate is 1 / sqrt(D). The mean of the bias token's squares runs over D + 1 coordinates."""
    return gain((d_model / (d_model + 1)) ** 0.5, (1 / d_model) ** 0.5, d_model)


def bias_without_root(d_model):
    """The gain of the bias coordinate lacks its root. The norm divides by the root of a mean square."""
    return gain((d_model / (d_model + 1)) ** 0.5, 1 / (d_model + 1), d_model)


def stream_without_root(d_model):
    """The gain of the stream lacks its root. The norm divides by the root of a mean square."""
    return gain(d_model / (d_model + 1), (1 / (d_model + 1)) ** 0.5, d_model)


EXERCISE = Exercise(
    name="norm_gain",
    title="a norm that keeps the bias token",
    section="4-mlps-as-heads/whole-transformer#repairs",
    solution=solution,
    cases=cases,
    observe=observe,
    axes=("row", "coordinate"),
    mistakes=(
        all_ones, both_inverted, exchanged, no_roots, stream_of_one, stream_inverted,
        same_everywhere, bias_of_one, bias_inverted, bias_first, bias_of_root_of_D,
        bias_without_root, stream_without_root,
    ),
)  # fmt: skip


def check_norm_gain(answer: Any) -> Result:
    r"""Check that `answer(d_model)` returns the gain with which RMSNorm keeps the bias token.

    With it $\\mathrm{RMSNorm}(X \\oplus [1])$, taken over all `d_model + 1` coordinates, equals
    $\\mathrm{RMSNorm}(X) \\oplus [1]$.

    Parameters
    ----------
    answer : function of an integer. It returns `[d_model + 1]`, the bias coordinate last.

    Source: this book.
    """
    return check(EXERCISE, answer)
