"""Exercise 1.1: what each component adds to a token's logit, compared with the mean over the vocabulary."""

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
    """Random parts, unembeddings and tokens."""
    for components, d_model, vocab in [(2, 3, 4), (4, 2, 5), (3, 6, 4), (6, 4, 9), (5, 5, 5)]:
        yield {
            "parts": normal(generator, components, d_model),
            "W_U": normal(generator, d_model, vocab),
            "token": whole(generator, vocab),
        }


def no_mean(parts, W_U, token):
    """The mean over the vocabulary is not subtracted. What does the component add to an average token?"""
    return parts @ W_U[:, token]


def mean_added(parts, W_U, token):
    """The mean over the vocabulary is added. What is left of a logit when you take the mean away?"""
    return parts @ (W_U[:, token] + W_U.mean(1))


def mean_over_components(parts, W_U, token):
    """You subtract a mean over components. The mean over tokens is asked for, for each component by itself."""
    adds = parts @ W_U[:, token]
    return adds - adds.mean()


def mean_of_other_tokens(parts, W_U, token):
    """Your mean leaves the token itself out. It has to include the whole vocabulary."""
    logits = parts @ W_U
    others = (logits.sum(1) - logits[:, token]) / (W_U.shape[1] - 1)
    return logits[:, token] - others


def mean_over_coordinates(parts, W_U, token):
    """You subtract the mean of a component's coordinates. First compute logits, then take their mean over tokens."""
    return parts @ W_U[:, token] - parts.mean(1)


def mean_of_all_weights(parts, W_U, token):
    """You subtract the mean of all entries of W_U. The mean has to be taken over tokens only: axis 1 of W_U."""
    return parts @ (W_U[:, token] - W_U.mean())


def wrong_axis_of_W_U(parts, W_U, token):
    """Your mean of W_U runs over axis 0, the coordinates. Which axis of W_U [d_model, vocab] are the tokens?"""
    return parts @ (W_U - W_U.mean(0))[:, token]


def mean_of_the_sum(parts, W_U, token):
    """You subtract the mean logit of the whole stream from every part. Which mean logit belongs to one part?"""
    return parts @ W_U[:, token] - (parts.sum(0) @ W_U).mean()


def equal_share_of_the_mean(parts, W_U, token):
    """You subtract the same share of the mean from each part. Each component has a mean logit of its own."""
    return parts @ W_U[:, token] - (parts @ W_U).mean()


def sum_subtracted(parts, W_U, token):
    """You subtract the sum over the vocabulary. Divide it by the number of tokens to get the mean."""
    logits = parts @ W_U
    return logits[:, token] - logits.sum(1)


def largest_subtracted(parts, W_U, token):
    """You subtract the largest logit. The mean over the vocabulary is asked for."""
    logits = parts @ W_U
    return logits[:, token] - logits.max(1).values


def median_subtracted(parts, W_U, token):
    """You subtract the median logit. The mean over the vocabulary is asked for."""
    logits = parts @ W_U
    return logits[:, token] - logits.median(1).values


def row_of_W_U(parts, W_U, token):
    """You take a row of W_U. W_U is [d_model, vocab], so a token is a column: W_U[:, token]."""
    return parts @ (W_U[token] - W_U.mean(1))


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


EXERCISE = Exercise(
    number="1.1",
    name="logit_in_parts",
    title="a logit in parts",
    section="01-residual-stream#the-stream-is-a-sum",
    solution=solution,
    cases=cases,
    axes=("component",),
    mistakes=(
        no_mean, mean_added, mean_over_components, mean_of_other_tokens, mean_over_coordinates,
        mean_of_all_weights, wrong_axis_of_W_U, mean_of_the_sum, equal_share_of_the_mean, sum_subtracted,
        largest_subtracted, median_subtracted, row_of_W_U, probabilities, log_probabilities, all_tokens,
        all_components_together,
    ),
)  # fmt: skip


def check_logit_in_parts(answer: Any) -> Result:
    """Exercise 1.1: `answer(parts, W_U, token)` returns what each component adds to the logit of a token.

    Parameters
    ----------
    answer : function of `parts [component, d_model]` at one position, `W_U [d_model, vocab]` and `token`, an integer.
        It returns `[component]`: logits minus their mean over the vocabulary.

    Source: this book.
    """
    return check(EXERCISE, answer)
