"""The attention of each head to the first position."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit.bridge import Model
from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise
from circuitkit_book.exercises.models_to_try import patterns, random_row, shipped


def solution(model: Model, tokens: Tensor) -> Tensor:
    """Take the mean of column 0 over all destinations except the first, head by head."""
    _, cache = model.run_with_cache(tokens)
    shares = torch.zeros(model.cfg.n_layers, model.cfg.n_heads)
    for layer in range(model.cfg.n_layers):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0]  # [head, dst, src]
        for head in range(model.cfg.n_heads):
            shares[layer, head] = pattern[head, 1:, 0].mean()
    return shares


def cases(generator: Generator) -> Iterator[Case]:
    """Random rows in three shipped models."""
    names = ("two-layer", "two-layer-mlp", "one-layer", "two-layer")
    for pos, name in zip((5, 8, 7, 11), names, strict=True):
        yield {"model": shipped(name), "tokens": random_row(generator, pos)}


def second_position(model, tokens):
    """You measure the attention to position 1. Positions are counted from 0."""
    return patterns(model, tokens)[..., 1:, 1].mean(-1)


def last_position(model, tokens):
    """You measure the attention to the last position. Which column is the first?"""
    return patterns(model, tokens)[..., 1:, -1].mean(-1)


def first_destination_included(model, tokens):
    """The first destination is included. It can only attend to itself, so leave its row out."""
    return patterns(model, tokens)[..., 0].mean(-1)


def last_destination_left_out(model, tokens):
    """You leave out the last destination. Only the first has no choice."""
    return patterns(model, tokens)[..., 1:-1, 0].mean(-1)


def summed(model, tokens):
    """You sum over destinations. Divide by their number: a mean of shares is at most 1."""
    return patterns(model, tokens)[..., 1:, 0].sum(-1)


def divided_by_all_positions(model, tokens):
    """You divide by the number of all positions. How many destinations are there without the first?"""
    return patterns(model, tokens)[..., 1:, 0].sum(-1) / tokens.shape[1]


def largest(model, tokens):
    """You take the largest share. The mean over destinations is asked for."""
    return patterns(model, tokens)[..., 1:, 0].amax(-1)


def each_destination(model, tokens):
    """There is still one number for each destination. Take the mean over them."""
    return patterns(model, tokens)[..., 1:, 0]


def axes_exchanged(model, tokens):
    """Destinations and sources are exchanged. `hook_pattern` is [row, head, destination, source]."""
    return patterns(model, tokens)[..., 0, 1:].mean(-1)


def two_layers_always(model, tokens):
    """You always read two layers, and this model has one. Use `model.cfg.n_layers` for the number of layers."""
    _, cache = model.run_with_cache(tokens)
    layers = [cache[f"blocks.{layer}.attn.hook_pattern"][0] for layer in (0, 1)]
    return torch.stack(layers)[..., 1:, 0].mean(-1)


def last_layer_for_all(model, tokens):
    """The last layer stands for all layers. Which name does each row of your result ask the cache for?"""
    found = solution(model, tokens)
    return found[-1:].expand_as(found)


def flattened(model, tokens):
    """Your result is one list of heads. Return [layer, head]."""
    return solution(model, tokens).flatten()


EXERCISE = Exercise(
    name="first_share",
    title="how much goes to the first position",
    section="2-qk-and-ov/what-a-head-writes#a-head-that-is-a-bias",
    solution=solution,
    cases=cases,
    axes=("layer", "head"),
    mistakes=(
        second_position, last_position, first_destination_included, last_destination_left_out,
        summed, divided_by_all_positions, largest, each_destination, axes_exchanged,
        two_layers_always, last_layer_for_all, flattened,
    ),
)  # fmt: skip


def check_first_share(answer: Any) -> Result:
    """Check that `answer(model, tokens)` returns the attention of each head to the first position.

    Parameters
    ----------
    answer : function of a model and `tokens [1, pos]`. It returns `[layer, head]`, the mean over all destinations
        except the first.

    Source: this book.
    """
    return check(EXERCISE, answer)
