"""How far apart two models are in what each neuron reads."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise
from circuitkit_book.exercises.models_to_try import random_row, shipped


def solution(one: Any, other: Any, tokens: Tensor) -> Tensor:
    """Compare the two caches position by position, and keep the largest gap of each neuron."""
    _, here = one.run_with_cache(tokens)
    _, there = other.run_with_cache(tokens)
    rows = []
    for layer in range(one.cfg.n_layers):
        name = f"blocks.{layer}.mlp.in.hook_out"
        largest = torch.zeros(here[name].shape[-1])
        for pos in range(tokens.shape[1]):
            largest = torch.maximum(largest, (here[name][0, pos] - there[name][0, pos]).abs())
        rows.append(largest)
    return torch.stack(rows)


@cache
def altered(seed: int) -> Any:
    """Return the shipped model with MLPs, in which some neurons read something else."""
    model, generator = deepcopy(shipped("two-layer-mlp")), Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in (0, 1)[seed % 2 :]:
            mlp = model.blocks[layer].mlp
            for neuron in torch.randint(512, (2,), generator=generator).tolist():
                mlp.b_in[neuron] += 1.5 * (-1) ** neuron
                mlp.W_in[:, neuron] += 0.1 * torch.randn(len(mlp.W_in), generator=generator)
    return model


def cases(generator: Generator) -> Iterator[Case]:
    """The shipped model and four altered ones."""
    for seed, pos in enumerate((3, 6, 8, 11)):
        tokens = random_row(generator, pos, first=1)
        yield {"one": shipped("two-layer-mlp"), "other": altered(seed), "tokens": tokens}


def readings(model, tokens, hook="in.hook_out"):
    """Return what each neuron reads, `[layer, pos, neuron]`."""
    _, cache = model.run_with_cache(tokens)
    layers = range(model.cfg.n_layers)
    return torch.stack([cache[f"blocks.{layer}.mlp.{hook}"][0] for layer in layers])


def gaps(one, other, tokens):
    """Return the differences with their signs, `[layer, pos, neuron]`."""
    return readings(one, tokens) - readings(other, tokens)


def behind_the_activation(one, other, tokens):
    """You compare values behind the activation. A neuron reads before it: `mlp.in.hook_out`."""
    name = "out.hook_in"
    return (readings(one, tokens, name) - readings(other, tokens, name)).abs().amax(1)


def mean(one, other, tokens):
    """You take the mean over positions. One token can tell two models apart, so take the largest gap."""
    return gaps(one, other, tokens).abs().mean(1)


def mean_before_absolute(one, other, tokens):
    """You take the mean before the absolute value, so gaps of both signs cancel. Take the largest absolute gap."""
    return gaps(one, other, tokens).mean(1).abs()


def sign_kept(one, other, tokens):
    """You keep the sign, so negative gaps are lost. Take absolute values first, then the largest."""
    return gaps(one, other, tokens).amax(1)


def last_position(one, other, tokens):
    """You compare only the last position. Compare all of them."""
    return gaps(one, other, tokens)[:, -1].abs()


def summed(one, other, tokens):
    """You sum over positions. Take the largest gap."""
    return gaps(one, other, tokens).abs().sum(1)


def norm(one, other, tokens):
    """You take a norm over positions. Take the largest gap."""
    return gaps(one, other, tokens).norm(dim=1)


def largest_readings(one, other, tokens):
    """You compare the largest readings of both models. Compare position by position, then take the largest gap."""
    return (readings(one, tokens).amax(1) - readings(other, tokens).amax(1)).abs()


def absolute_readings(one, other, tokens):
    """You take absolute values before you subtract, so a change of sign is lost. Subtract first."""
    return (readings(one, tokens).abs() - readings(other, tokens).abs()).abs().amax(1)


def largest_over_neurons(one, other, tokens):
    """Your maximum runs over neurons. It has to run over positions; return [layer, neuron]."""
    return gaps(one, other, tokens).abs().amax(2)


def sign_kept_in_reverse(one, other, tokens):
    """You keep the sign, so the gaps of one sign are lost. Take absolute values first, then the largest."""
    return (-gaps(one, other, tokens)).amax(1)


def positions_of_the_gaps(one, other, tokens):
    """You return the position of the largest gap. Return the gap itself: `amax`, not `argmax`."""
    return gaps(one, other, tokens).abs().argmax(1)


def first_position(one, other, tokens):
    """You compare only the first position. Compare all of them."""
    return gaps(one, other, tokens)[:, 0].abs()


def what_the_layer_writes(one, other, tokens):
    """You compare what the MLP writes, which has d_model numbers. Compare what its neurons read: `mlp.in.hook_out`."""
    _, here = one.run_with_cache(tokens)
    _, there = other.run_with_cache(tokens)
    names = [f"blocks.{layer}.hook_mlp_out" for layer in range(one.cfg.n_layers)]
    return torch.stack([(here[name][0] - there[name][0]).abs().amax(0) for name in names])


EXERCISE = Exercise(
    name="where_they_part",
    title="where two models differ first",
    section="4-mlps-as-heads/trained-models#converting-a-small-model",
    solution=solution,
    cases=cases,
    axes=("layer", "neuron"),
    mistakes=(
        behind_the_activation, mean, mean_before_absolute, sign_kept, last_position, summed,
        norm, largest_readings, absolute_readings, largest_over_neurons, sign_kept_in_reverse,
        positions_of_the_gaps, first_position, what_the_layer_writes,
    ),
)  # fmt: skip


def check_where_they_part(answer: Any) -> Result:
    """Check that `answer(one, other, tokens)` returns how far apart two models are in what each neuron reads.

    Parameters
    ----------
    answer : function of two models and `tokens [1, pos]`. It returns `[layer, neuron]`, the largest absolute gap over
        positions, before the activation (`mlp.in.hook_out`).

    Source: this book.
    """
    return check(EXERCISE, answer)
