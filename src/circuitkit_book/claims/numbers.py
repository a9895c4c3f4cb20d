"""Seeded random numbers, and the power of ten that an error lies below: its last digits differ between machines."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Float[Tensor, "..."]:
    """Standard normal numbers from a generator of their own, drawn in float64."""
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def below(x: float) -> str:
    """The power of ten that a number lies below.

    >>> below(3e-5), below(0.2), below(float("nan"))
    ('< 1e-4', '< 1e0', 'not a number')
    """
    if math.isnan(x):
        return "not a number"
    return f"< 1e{math.floor(math.log10(max(x, 1e-300))) + 1}"


def largest(x: Float[Tensor, "..."]) -> float:
    """The largest entry in size."""
    return float(x.detach().abs().max())


def above_the_mlp(kind: str) -> list[float]:
    """Last validation loss of a kind of decoder above that of the MLP, over three seeds: mean, and the ends of its 95 % interval."""
    from circuitkit_book.stored_tables import stored_study

    trained = stored_study("trained")[0]
    runs = zip(trained["kind"], trained["seed"], trained["curve"], strict=True)
    last = {(name, seed): curve[-1][1] for name, seed, curve in runs}
    off = torch.tensor(
        [last[kind, seed] - last["mlp", seed] for seed in range(3)], dtype=torch.float64
    )
    half = 4.302653 * float(off.std()) / math.sqrt(3)  # Student's t, two degrees of freedom
    return [float(off.mean()), float(off.mean()) - half, float(off.mean()) + half]
