"""What composition scores are worth: the score of heads that have nothing to do with each other."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Count, Natural, Seed, public
from circuitkit._heads import Heads

Baseline = Literal["random", "analytic", "rotated"]


@public
def random_heads(n: Count, d_model: Count, d_head: Count, *, layer: Natural = 0, seed: Seed = 0) -> Heads:
    r"""Heads of independent Gaussian weights with variance $1/d_{model}$, named `L{layer}H{i}`.

    **Shapes**: `W_Q, W_K, W_V[n, d_model, d_head]`, `W_O[n, d_head, d_model]`. **Source**: this book; the baseline
    of `composition_scores` is its mean.

    >>> random_heads(3, 16, 2).W_Q.shape
    torch.Size([3, 16, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator) / math.sqrt(d_model)  # noqa: E731
    return Heads(
        names=tuple(f"L{layer}H{head}" for head in range(n)),
        W_Q=draw(n, d_model, d_head),
        W_K=draw(n, d_model, d_head),
        W_V=draw(n, d_model, d_head),
        W_O=draw(n, d_head, d_model),
        layers=(layer,) * n,
    )


def composition_baseline(
    earlier: Heads, reads: Float[Tensor, "later d_model d_late"], baseline: Baseline, *, scale_free: bool, seed: int
) -> "float | Float[Tensor, 'later']":
    r"""The score of unrelated heads; see `composition_scores`.

    `"analytic"` is exact for the root mean square: turning one head's output by a uniformly random rotation makes the
    mean squared score $1/d_{model}$ whatever the spectra. `"rotated"` turns within the $c$ coordinates that some
    earlier head writes, which gives $\|P A B\|_F / (\|A B\|_F \sqrt c)$ with $P$ the projection on them: lower than
    $1/\sqrt c$ for a head that mostly reads what nobody writes, such as positions.
    """
    if baseline == "analytic":
        return 1 / math.sqrt(earlier.d_model)
    if baseline == "rotated":
        written = earlier.W_O.abs().amax(dim=(0, 1)) > 0
        within = reads[:, written].flatten(1).norm(dim=1) / reads.flatten(1).norm(dim=1)
        return within / math.sqrt(int(written.sum()))
    return _measured(earlier.d_model, earlier.d_head, reads.shape[-1], scale_free=scale_free, seed=seed)


def _measured(d_model: int, d_early: int, d_late: int, *, scale_free: bool, seed: int) -> float:
    """Mean score of all pairs of two random stacks of these shapes: 12 by 12 wide heads, up to 64 by 64 narrow ones."""
    from circuitkit.circuits._composition import composition_scores

    n = min(64, max(12, 512 // max(d_early, d_late)))
    early, late = random_heads(n, d_model, d_early, seed=seed), random_heads(n, d_model, d_late, layer=1, seed=seed + 1)
    result = composition_scores(early, late, "K", scale_free=scale_free, baseline="analytic")
    return result.score.double().mean().item()
