"""The parts of a logit that is read through a LayerNorm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, normal, whole


def solution(parts: Tensor, gain: Tensor, W_U: Tensor, token: int, eps: float) -> Tensor:
    """Centre each part, divide all of them by the scale of the sum, and read the token's logit."""
    divisor = (parts.sum(0).var(correction=0) + eps).sqrt()
    adds = []
    for part in parts:
        normalised = (part - part.mean()) / divisor * gain
        adds.append(normalised @ W_U[:, token])
    return torch.stack(adds)


def cases(generator: Generator) -> Iterator[Case]:
    """Random parts and weights, with an eps that is large enough to be seen."""
    for components, d_model, vocab in [(3, 4, 5), (5, 3, 4), (4, 6, 3), (2, 7, 8), (5, 5, 7)]:
        yield {
            "parts": normal(generator, components, d_model),
            "gain": normal(generator, d_model) + 1,
            "W_U": normal(generator, d_model, vocab),
            "token": whole(generator, vocab),
            "eps": 0.01 * components,
        }


def read(centred, divisor, gain, W_U, token):
    """Return the logits of the token for centred parts, with a divisor."""
    return (centred / divisor * gain) @ W_U[:, token]


def centre(parts):
    """Return each part without the mean over its coordinates."""
    return parts - parts.mean(-1, keepdim=True)


def scale(parts, eps):
    """Return what the LayerNorm divides by."""
    return (parts.sum(0).var(correction=0) + eps).sqrt()


def not_centred(parts, gain, W_U, token, eps):
    """The parts are not centred. The norm subtracts a mean over coordinates; what does that do to each part?"""
    return read(parts, scale(parts, eps), gain, W_U, token)


def centred_by_the_sum(parts, gain, W_U, token, eps):
    """You subtract the mean of the whole stream from every part. Each part loses only its own mean."""
    return read(parts - parts.sum(0).mean(), scale(parts, eps), gain, W_U, token)


def centred_over_components(parts, gain, W_U, token, eps):
    """You subtract a mean over components. A LayerNorm takes the mean over the coordinates of a vector."""
    return read(parts - parts.mean(0), scale(parts, eps), gain, W_U, token)


def sample_variance(parts, gain, W_U, token, eps):
    """Your variance divides by d_model - 1. Use `var(correction=0)`, because a LayerNorm divides by d_model."""
    return read(centre(parts), (parts.sum(0).var() + eps).sqrt(), gain, W_U, token)


def sample_deviation_plus_eps(parts, gain, W_U, token, eps):
    """You divide by `std() + eps`. `std()` divides squares by d_model - 1, and eps belongs below the root."""
    return read(centre(parts), parts.sum(0).std() + eps, gain, W_U, token)


def root_mean_square(parts, gain, W_U, token, eps):
    """Your divisor does not subtract the mean of the stream. A LayerNorm measures the centred stream."""
    return read(centre(parts), (parts.sum(0).square().mean() + eps).sqrt(), gain, W_U, token)


def no_divisor(parts, gain, W_U, token, eps):
    """You do not divide. One number, computed from the sum of all parts, divides each of them."""
    return read(centre(parts), 1.0, gain, W_U, token)


def no_eps(parts, gain, W_U, token, eps):
    """eps is missing. The model adds it to the variance, below the root."""
    return read(centre(parts), scale(parts, 0.0), gain, W_U, token)


def eps_outside(parts, gain, W_U, token, eps):
    """You add eps outside of the root. It has to be added to the variance before you take the root."""
    return read(centre(parts), scale(parts, 0.0) + eps, gain, W_U, token)


def divisor_of_each_part(parts, gain, W_U, token, eps):
    """You divide each part by a scale of its own. The model normalises only the sum, so all parts share one divisor."""
    divisor = (parts.var(1, correction=0, keepdim=True) + eps).sqrt()
    return read(centre(parts), divisor, gain, W_U, token)


def no_gain(parts, gain, W_U, token, eps):
    """The gain is missing. After dividing, the norm multiplies each coordinate by it."""
    return read(centre(parts), scale(parts, eps), 1.0, W_U, token)


def mean_over_vocabulary(parts, gain, W_U, token, eps):
    """You subtract the mean over the vocabulary. Here the parts have to sum to the logit itself."""
    return read(centre(parts), scale(parts, eps), gain, W_U - W_U.mean(1, keepdim=True), token)


def all_tokens(parts, gain, W_U, token, eps):
    """You return one number for every token. Which column is the token that is asked for?"""
    return (centre(parts) / scale(parts, eps) * gain) @ W_U


def all_components_together(parts, gain, W_U, token, eps):
    """You return one number for all components together. Do not sum over the components at the end."""
    return solution(parts, gain, W_U, token, eps).sum()


def variance_as_divisor(parts, gain, W_U, token, eps):
    """You divide by the variance. A LayerNorm divides by its square root."""
    return read(centre(parts), scale(parts, eps).square(), gain, W_U, token)


def sample_deviation(parts, gain, W_U, token, eps):
    """You divide by `std()`. It divides the squares by d_model - 1, and eps is missing: sqrt(var(correction=0) + eps)."""
    return read(centre(parts), parts.sum(0).std(), gain, W_U, token)


def equal_share_of_the_mean(parts, gain, W_U, token, eps):
    """You subtract the same share of the mean from each part. Each part loses its own mean over the coordinates."""
    share = parts.sum(0).mean() / len(parts)
    return read(parts - share, scale(parts, eps), gain, W_U, token)


def row_of_W_U(parts, gain, W_U, token, eps):
    """You take a row of W_U. W_U is [d_model, vocab], so a token is a column: W_U[:, token]."""
    return (centre(parts) / scale(parts, eps) * gain) @ W_U[token]


EXERCISE = Exercise(
    name="logit_through_norm",
    title="the same through a LayerNorm",
    section="1-residual-stream/stream-is-a-sum#the-sum-needs-the-norm-outside-the-stream",
    solution=solution,
    cases=cases,
    axes=("component",),
    mistakes=(
        not_centred, centred_by_the_sum, centred_over_components, sample_variance,
        sample_deviation_plus_eps, root_mean_square, no_divisor, no_eps, eps_outside,
        divisor_of_each_part, no_gain, mean_over_vocabulary, all_tokens,
        all_components_together, variance_as_divisor, sample_deviation, equal_share_of_the_mean,
        row_of_W_U,
    ),
)  # fmt: skip


def check_logit_through_norm(answer: Any) -> Result:
    """Check that `answer(parts, gain, W_U, token, eps)` splits a logit that is read through a LayerNorm.

    Parameters
    ----------
    answer : function of `parts [component, d_model]`, `gain [d_model]`, `W_U [d_model, vocab]`, `token`, an integer,
        and `eps`, the number added to the variance; the norm has no bias. It returns `[component]`.

    Source: this book.
    """
    return check(EXERCISE, answer)
