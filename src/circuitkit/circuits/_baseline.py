"""Heads that have nothing to do with each other: what any score of real ones is compared with."""

import math

import torch

from circuitkit._contract import Count, Natural, Seed, public
from circuitkit._heads import Heads


@public
def random_heads(n: Count, d_model: Count, d_head: Count, *, layer: Natural = 0, seed: Seed = 0) -> Heads:
    """Heads of independent Gaussian weights with variance $1/d_{model}$, named `L{layer}H{i}`.

    **Shapes**: `W_Q, W_K, W_V[n, d_model, d_head]`, `W_O[n, d_head, d_model]`. **Source**: this book; the baseline of
    `composition_scores` is its mean.

    >>> random_heads(3, 16, 2).W_Q.shape
    torch.Size([3, 16, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator) / math.sqrt(d_model)  # noqa: E731
    names, shapes = tuple(f"L{layer}H{head}" for head in range(n)), [(n, d_model, d_head)] * 3 + [(n, d_head, d_model)]
    return Heads(names, *(draw(*shape) for shape in shapes), layers=(layer,) * n)
