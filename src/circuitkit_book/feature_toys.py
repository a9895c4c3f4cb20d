"""Toy models that store more sparse features than they have dimensions, trained side by side.

The appendix of chapter 1 and one claim use them.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.checks import checked, require_at_least
from circuitkit.training import fit

__all__ = ["FeatureToys", "cosine_decay", "train_toy_models"]

Pairs = Literal["independent", "anticorrelated"]


class FeatureToys(NamedTuple):
    """Trained toy models `x -> ReLU(x W W^T + b)`, one for each density.

    Notes
    -----
    Source: Elhage et al. 2022, "Toy Models of Superposition".
    """

    W: Float[Tensor, "instance feature hidden"]
    """Row `i` is the direction that stores feature `i`."""
    b: Float[Tensor, "instance feature"]
    loss: Float[Tensor, " instance"]
    """Squared error of the last training step, weighted by importance and summed over features."""


@checked
def train_toy_models(
    density: Float[Tensor, " instance"],
    n_features: int,
    n_hidden: int,
    *,
    importance: float = 1.0,
    pairs: Pairs = "independent",
    steps: int = 3_000,
    batch: int = 256,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> FeatureToys:
    """Train one toy model for each feature density, all side by side.

    A feature that is on has a uniform value from 0 to 1. The optimizer is Adam with a learning
    rate that decays along a cosine.

    Parameters
    ----------
    density : for each model, the probability that a feature is on
    n_features, n_hidden : number of features, and of dimensions that store them
    importance : the factor from the weight of one feature in the loss to the weight of the next
    pairs : with `"anticorrelated"`, features 2k and 2k+1 are never on together
    steps, batch, learning_rate, seed : settings of the training

    Raises
    ------
    ValueError : for densities that are no probabilities or that pairs cannot have

    Notes
    -----
    Source: Elhage et al. 2022, "Toy Models of Superposition", sections 2 to 4.

    Examples
    --------
    >>> toys = train_toy_models(torch.tensor([0.1, 0.5]), 5, 2, steps=10)
    >>> toys.W.shape
    torch.Size([2, 5, 2])
    """
    require_density(density, n_features, pairs)
    # drawn on the CPU, so that the numbers are the same on every device
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(len(density), n_features, n_hidden, generator=generator) / n_hidden**0.5
    W = start.to(density.device).requires_grad_()
    b = torch.zeros(W.shape[:2], device=density.device, requires_grad=True)
    weights = importance ** torch.arange(n_features, device=density.device)

    def loss_function(step: int) -> Float[Tensor, " instance"]:
        x = sample_features(density.cpu(), n_features, batch, pairs, generator).to(density.device)
        rebuilt = torch.relu(x @ W @ W.mT + b[:, None])  # [instance, batch, feature]
        return ((rebuilt - x).square() @ weights.to(x)).mean(1)

    losses = fit([W, b], loss_function, steps, learning_rate=cosine_decay(learning_rate, steps))
    return FeatureToys(W.detach(), b.detach(), losses[-1])


def require_density(density: Tensor, n_features: int, pairs: Pairs) -> None:
    """Raise a `ValueError` for densities that cannot be drawn."""
    if len(density) == 0 or not bool(((density >= 0) & (density <= 1)).all()):
        raise ValueError(
            "density must hold a probability from 0 to 1 for each model, such as "
            "torch.tensor([0.1, 0.5])."
        )
    if pairs == "anticorrelated" and (n_features % 2 == 1 or float(density.max()) > 0.5):
        raise ValueError(
            f"Two features that are never on together need a density of at most 0.5 and an even "
            f"number of features; these are {float(density.max()):g} and {n_features}."
        )


def sample_features(
    density: Float[Tensor, " instance"],
    n_features: int,
    batch: int,
    pairs: Pairs,
    generator: torch.Generator,
) -> Float[Tensor, "instance batch feature"]:
    """Draw feature values: 0 where a feature is off, uniform from 0 to 1 where it is on."""
    shape = (len(density), batch, n_features)
    value = torch.rand(shape, generator=generator)
    if pairs == "independent":
        return value * (torch.rand(shape, generator=generator) < density[:, None, None])
    draw = torch.rand(len(density), batch, n_features // 2, generator=generator)
    first_is_on = draw < density[:, None, None]
    second_is_on = draw >= 1 - density[:, None, None]
    return value * torch.stack([first_is_on, second_is_on], dim=-1).flatten(-2)


@checked
def cosine_decay(learning_rate: float, steps: int) -> Callable[[int], float]:
    """Return the schedule that falls from `learning_rate` to 0 along half a cosine.

    Parameters
    ----------
    learning_rate : the rate of step 0
    steps : number of steps after which the rate would be 0

    Returns
    -------
    A function of the step, for the `learning_rate` of `fit`.

    Notes
    -----
    Source: Loshchilov and Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm Restarts".

    Examples
    --------
    >>> rate = cosine_decay(0.1, 10)
    >>> round(rate(0), 3), round(rate(5), 3), round(rate(10), 3)
    (0.1, 0.05, 0.0)
    """
    require_at_least(1, steps=steps)
    return lambda step: learning_rate * (1 + math.cos(math.pi * step / steps)) / 2
