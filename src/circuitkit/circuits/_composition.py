"""How strongly one head's output feeds another head's query, key or value: composition scores from weights alone."""

import math
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from circuitkit._blocks import Thin, product_norms, require_room, row_directions, thin, tiles
from circuitkit._contract import Count, Seed, one_stream, public
from circuitkit._heads import Heads
from circuitkit.circuits._baseline import random_heads
from circuitkit.circuits._virtual import one_dtype_of, runs_before

Kind = Literal["Q", "K", "V"]
Baseline = Literal["random", "analytic", "rotated"]


@public
class Composition(NamedTuple):
    """What `composition_scores` returns. **Source**: see `composition_scores`."""

    score: Float[Tensor, "earlier later"]
    """Frobenius ratio, between 0 and 1; exactly 0 where `possible` is False."""
    baseline: "float | Float[Tensor, 'later']"
    """The score that heads with no relation to each other have."""
    possible: Bool[Tensor, "earlier later"]
    """True where the earlier head's layer really lies before the later head's."""
    kind: str
    """`"Q"`, `"K"` or `"V"`: the input of the later head that is fed."""
    earlier: tuple[str, ...]
    """Names of the rows."""
    later: tuple[str, ...]
    """Names of the columns."""

    @property
    def excess(self) -> Float[Tensor, "earlier later"]:
        """`score - baseline` where composition is possible, 0 elsewhere."""
        return torch.where(self.possible, self.score - self.baseline, torch.zeros_like(self.score))

    def strongest(self, k: Count = 5) -> list[tuple[str, str, float]]:
        """The `k` pairs with the largest excess: (earlier name, later name, excess), best first."""
        excess = self.excess.masked_fill(~self.possible, -torch.inf).flatten()
        best = excess.topk(min(k, int(self.possible.sum())))
        width = len(self.later)
        return [
            (self.earlier[i // width], self.later[i % width], value)
            for i, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


@public
@one_stream()
@torch.no_grad()
def composition_scores(
    earlier: Heads,
    later: Heads,
    kind: Kind = "K",
    *,
    scale_free: bool = False,
    baseline: Baseline = "random",
    seed: Seed = 0,
) -> Composition:
    r"""Composition of every earlier head with every later head.

    $\|W_{OV}^e M^l\|_F / (\|W_{OV}^e\|_F \|M^l\|_F)$ with $M^l = W_{QK}$, $W_{QK}^\top$ or $W_{OV}$ of the later head for
    kind Q, K, V. `scale_free=True` sets every non-zero singular value of both matrices to 1 first, so that it measures the
    overlap of the written and the read subspace whatever their gains. **Shapes**: heads of any number and any `d_head` on
    either side, one `d_model`; score `[earlier, later]`. **Baseline**: `"random"` (mean over seeded Gaussian heads of these
    shapes), `"analytic"` ($1/\sqrt{d_{model}}$) or `"rotated"` (per later head, outputs turned at random within the
    coordinates that the earlier heads write at all). **Error**: exact up to rounding (float32 for half precision), by
    Gram matrices in tiles; what would cancel there is multiplied out. Pairs out of order score 0.
    Biases and a LayerNorm between the two heads are not part of it. **Source**: "A Mathematical Framework for Transformer
    Circuits", two-layer models; there in column vectors and without a baseline.

    >>> from circuitkit.circuits import random_heads
    >>> early, late = random_heads(2, 48, 4), random_heads(3, 48, 4, layer=1, seed=1)
    >>> composition_scores(early, late, "V").score.shape
    torch.Size([2, 3])
    """
    possible = runs_before(earlier, later, "composition_scores")
    dtype = one_dtype_of(earlier, later, torch.float32)  # half precision has no decompositions
    require_room("composition_scores", 4 * len(earlier) * len(later), earlier.W_O, "Take fewer heads at a time: heads[:1000]")
    score = torch.zeros_like(possible, dtype=dtype)
    expected = torch.ones_like(possible, dtype=dtype)[0]
    each = earlier.d_model * max(earlier.d_head, later.d_head)
    written = torch.stack([(W != 0).any(0) for W in earlier.W_O]).any(0) if baseline == "rotated" else None
    makers = (lambda rows: _written(earlier[rows], dtype, spans=scale_free)), (lambda rows: _read(later[rows], kind, dtype, spans=scale_free))
    for (rows, columns), writes, reads in tiles(len(earlier), len(later), each, *makers):
        if scale_free:
            writes, reads = (Thin(*2 * [row_directions(some.A)]) for some in (writes, reads))
        norms = writes.squares.sqrt()[:, None] * reads.squares.sqrt()
        products = product_norms(writes, reads, possible[rows, columns])
        score[rows, columns] = torch.where(possible[rows, columns] & (norms > 0), products / norms.clamp_min(torch.finfo(dtype).tiny), 0.0)
        if written is not None:
            expected[columns] = ((reads.A * reads.B)[..., written].sum((1, 2)) / reads.squares).sqrt()
    sizes = earlier.d_model, earlier.d_head, later.d_head
    chance = expected / math.sqrt(int(written.sum())) if written is not None else composition_baseline(*sizes, baseline, scale_free=scale_free, seed=seed)
    return Composition(score, chance, possible, kind, earlier.names, later.names)


def _written(heads: Heads, dtype: torch.dtype, *, spans: bool = False) -> Thin:
    """`W_V W_O`, by what it writes."""
    return thin(heads.W_O.to(dtype), heads.by_head("W_V").to(dtype), spans=spans)


def _read(heads: Heads, kind: str, dtype: torch.dtype, *, spans: bool = False) -> Thin:
    """The transpose of the later head's matrix `A B^T`, by what it reads."""
    sides: Any = {"Q": ("W_Q", "W_K"), "K": ("W_K", "W_Q"), "V": ("W_V", "W_O")}
    left, right = sides[kind]
    other = heads.W_O.mT if right == "W_O" else heads.by_head(right)
    return thin(heads.by_head(left).to(dtype).mT, other.to(dtype), spans=spans)


@cache
def composition_baseline(d_model: int, d_early: int, d_late: int, baseline: Baseline, *, scale_free: bool, seed: int) -> float:
    r"""The score of unrelated heads of these sizes: the mean of all pairs of two random stacks, 12 by 12 wide heads, up to 64 by 64 narrow ones.

    `"analytic"` is exact for the root mean square: turning one head's output by a uniformly random rotation makes the mean
    squared score $1/d_{model}$ whatever the spectra. `"rotated"` turns within the $c$ coordinates that some earlier head
    writes, which gives $\|P A B\|_F / (\|A B\|_F \sqrt c)$ with $P$ the projection on them: lower than $1/\sqrt c$ for a head
    that mostly reads what nobody writes, such as positions.
    """
    if baseline == "analytic":
        return 1 / math.sqrt(d_model)
    n = min(64, max(12, 512 // max(d_early, d_late)))
    early, late = random_heads(n, d_model, d_early, seed=seed), random_heads(n, d_model, d_late, layer=1, seed=seed + 1)
    result = composition_scores(early, late, "K", scale_free=scale_free, baseline="analytic")
    return result.score.double().mean().item()
