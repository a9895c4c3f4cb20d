"""What each component adds to a token's logit, compared with the mean over the vocabulary."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, normal, whole


def solution(parts: Tensor, W_U: Tensor, token: int) -> Tensor:
    """Return the logit of the token minus the mean logit, for one component after another."""
    adds = []
    for part in parts:
        logits = part @ W_U
        adds.append(logits[token] - logits.mean())
    return torch.stack(adds)


def cases(generator: Generator) -> Iterator[Case]:
    """Random parts, unembeddings and tokens. No W_U is square, so that a row in place of a column always fails."""
    for components, d_model, vocab in [(2, 3, 4), (4, 2, 5), (3, 6, 4), (6, 4, 9), (5, 5, 7)]:
        yield {
            "parts": normal(generator, components, d_model),
            "W_U": normal(generator, d_model, vocab),
            "token": whole(generator, vocab),
        }


def no_mean(parts, W_U, token):
    """The mean over the vocabulary is not subtracted. What does the component add to an average token?"""
    return parts @ W_U[:, token]


def mean_over_components(parts, W_U, token):
    """You subtract a mean over components. The mean over tokens is asked for, for each component by itself."""
    adds = parts @ W_U[:, token]
    return adds - adds.mean()


def wrong_axis_of_W_U(parts, W_U, token):
    """Your mean of W_U runs over axis 0, the coordinates. Which axis of W_U [d_model, vocab] are the tokens?"""
    return parts @ (W_U - W_U.mean(0))[:, token]


def equal_share_of_the_mean(parts, W_U, token):
    """You subtract the same share of the mean from each part. Each component has a mean logit of its own."""
    return parts @ W_U[:, token] - (parts @ W_U).mean()


def row_of_W_U(parts, W_U, token):
    """You take a row of W_U. W_U is [d_model, vocab], so a token is a column: W_U[:, token]."""
    return parts @ W_U[token]


def probabilities(parts, W_U, token):
    """You take a softmax of each part. Logits of components add up, but probabilities do not."""
    return (parts @ W_U).softmax(-1)[:, token]


def log_probabilities(parts, W_U, token):
    """You take a log-softmax of each part. Its normaliser is not a sum over components; the mean logit is."""
    return (parts @ W_U).log_softmax(-1)[:, token]


def all_tokens(parts, W_U, token):
    """You return one number for every token. Which column is the token that is asked for?"""
    logits = parts @ W_U
    return logits - logits.mean(1, keepdim=True)


def all_components_together(parts, W_U, token):
    """You return one number for all components together. Do not sum over the components."""
    logits = parts.sum(0) @ W_U
    return logits[token] - logits.mean()


def mean_of_the_stream(parts, W_U, token):
    """You subtract the mean logit of the whole stream from every part. Each component has a mean logit of its own."""
    return parts @ W_U[:, token] - (parts.sum(0) @ W_U).mean()


def sum_over_vocabulary(parts, W_U, token):
    """You subtract the sum over the vocabulary. Subtract the mean, which is the sum divided by the number of tokens."""
    return parts @ W_U[:, token] - (parts @ W_U).sum(1)


EXERCISE = Exercise(
    name="logit_in_parts",
    title="a logit in parts",
    section="1-residual-stream/stream-is-a-sum#each-head-adds-a-number-to-the-logit",
    solution=solution,
    cases=cases,
    axes=("component",),
    mistakes=(
        no_mean, mean_over_components, wrong_axis_of_W_U, equal_share_of_the_mean, row_of_W_U,
        probabilities, log_probabilities, all_tokens, all_components_together,
        mean_of_the_stream, sum_over_vocabulary,
    ),
)  # fmt: skip


def check_logit_in_parts(answer: Any) -> Result:
    """Check that `answer(parts, W_U, token)` returns what each component adds to the logit of a token.

    Parameters
    ----------
    answer : function of `parts [component, d_model]` at one position, `W_U [d_model, vocab]` and `token`, an integer.
        It returns `[component]`: logits minus their mean over the vocabulary.

    Source: this book.
    """
    return check(EXERCISE, answer)
