"""How one head feeds another: virtual heads, composition scores from weights alone, and heads drawn to compare with."""

import math
from functools import cache, reduce
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from circuitkit._blocks import Thin, product_norms, require_room, row_directions, thin, tiles
from circuitkit._contract import Count, Natural, Seed, must, one_stream, public
from circuitkit._heads import Heads
from circuitkit._state import is_finite
from circuitkit.anatomy import join


@public
def random_heads(
    n: Count, d_model: Count, d_head: Count, *, layer: Natural = 0, seed: Seed = 0
) -> Heads:
    """Heads of independent Gaussian weights with variance $1/d_{model}$, named `L{layer}H{i}`.

    **Shapes**: `W_Q, W_K, W_V[n, d_model, d_head]`, `W_O[n, d_head, d_model]`. **Source**: this book; the baseline of
    `composition_scores` is its mean.

    >>> random_heads(3, 16, 2).W_Q.shape
    torch.Size([3, 16, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator) / math.sqrt(d_model)  # noqa: E731
    names, shapes = (
        tuple(f"L{layer}H{head}" for head in range(n)),
        [(n, d_model, d_head)] * 3 + [(n, d_head, d_model)],
    )
    return Heads(names, *(draw(*shape) for shape in shapes), layers=(layer,) * n)


@public
@one_stream()
def virtual_head(earlier: Heads, later: Heads) -> Heads:
    """V-composition of every earlier with every later head, as heads named `"L0H1->L1H3"`, earlier-major order.

    $W_{OV} = W_{OV}^e W_{OV}^l$ and, with frozen patterns, $A = A^l A^e$. A product of two patterns is in general no softmax
    of anything, so `W_Q` and `W_K` are NaN, and so is a virtual head's own pattern: give `results(x, pattern=A_l @ A_e)`.
    **Shapes**: `d_head` is the smaller of the two; `b_V` carries the earlier head's value bias through the later head.
    **Error**: exact up to rounding. **Source**: "A Mathematical Framework for Transformer Circuits", virtual attention heads.

    >>> from circuitkit.circuits import random_heads
    >>> virtual_head(random_heads(1, 12, 2), random_heads(2, 12, 3, layer=1)).names
    ('L0H0->L1H0', 'L0H0->L1H1')
    """
    runs_before(earlier, later, "virtual_head", every=True)
    earlier, later = (part.to(one_dtype_of(earlier, later)) for part in (earlier, later))
    between = torch.einsum("ehm,lmk->elhk", earlier.W_O, later.W_V)
    value = earlier.W_V[:, None].expand(-1, len(later), -1, -1)
    output = later.W_O[None].expand(len(earlier), -1, -1, -1)
    bias = None if earlier.b_V is None else earlier.b_V[:, None].expand(-1, len(later), -1)
    if earlier.d_head <= later.d_head:
        output = between @ output
    else:
        value = value @ between
        bias = None if bias is None else (bias[:, :, None] @ between).squeeze(2)
    value, output = (W.flatten(0, 1).contiguous() for W in (value, output))
    bias = None if bias is None else bias.flatten(0, 1).contiguous()
    names = tuple(join(first, second) for first in earlier.names for second in later.names)
    never = torch.full_like(value, torch.nan)
    return Heads(
        names,
        never,
        never.clone(),
        value,
        output,
        b_V=bias,
        layers=later.layers * len(earlier),
        mask=later.mask,
    )


def one_dtype_of(earlier: Heads, later: Heads, *least: torch.dtype) -> torch.dtype:
    """The finer of both stacks' dtypes, or `least` if that is finer."""
    return reduce(torch.promote_types, (later.W_Q.dtype, *least), earlier.W_Q.dtype)


def runs_before(
    earlier: Heads, later: Heads, what: str, *, every: bool = False
) -> Bool[Tensor, "earlier later"]:
    """True where a head of `earlier` lies in a lower layer; a `ValueError` if no pair (or not every pair) does."""
    early = torch.tensor(earlier.layers, device=earlier.W_Q.device)
    late = torch.tensor(later.layers, device=earlier.W_Q.device)
    before = early[:, None] < late[None, :]
    if before.all() if every else before.any():
        return before
    raise ValueError(
        f"{what} got earlier heads {_named(earlier)} and later heads {_named(later)}; expected {'every' if every else 'at least one'} "
        "earlier head in a lower layer, because a head reads only what earlier layers wrote. Swap the two arguments, choose other "
        "heads, or set the layers of hand-built heads with dataclasses.replace(heads, layers=(1,) * len(heads))."
    )


def _named(heads: Heads) -> str:
    shown = [
        f"{name} (layer {layer})" for name, layer in zip(heads.names, heads.layers, strict=True)
    ]
    return ", ".join(shown[:4]) + (f", ... ({len(shown)} in all)" if len(shown) > 4 else "")


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
@must(
    lambda later, kind: (
        kind == "V"
        or is_finite(later.W_Q)
        and is_finite(later.W_K)
        or "heads that look somewhere: a virtual head has no QK circuit. Write kind='V'"
    )
)
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
    Gram matrices in tiles; what would cancel there is multiplied out. Pairs out of order score 0. Weights that ask for
    a gradient get one: each product is then formed, which is slower.
    Biases and a LayerNorm between the two heads are not part of it. **Source**: "A Mathematical Framework for Transformer
    Circuits", two-layer models; there in column vectors and without a baseline.

    >>> from circuitkit.circuits import random_heads
    >>> early, late = random_heads(2, 48, 4), random_heads(3, 48, 4, layer=1, seed=1)
    >>> composition_scores(early, late, "V").score.shape
    torch.Size([2, 3])
    """
    possible = runs_before(earlier, later, "composition_scores")
    dtype = one_dtype_of(earlier, later, torch.float32)  # half precision has no decompositions
    require_room(
        "composition_scores",
        4 * len(earlier) * len(later),
        earlier.W_O,
        "Take fewer heads at a time: heads[:1000]",
    )
    score = torch.zeros_like(possible, dtype=dtype)
    expected = torch.ones_like(possible, dtype=dtype)[0]
    each = earlier.d_model * max(earlier.d_head, later.d_head)
    written = (
        torch.stack([(W != 0).any(0) for W in earlier.W_O]).any(0)
        if baseline == "rotated"
        else None
    )
    makers = (
        (lambda rows: _written(earlier[rows], dtype, spans=scale_free)),
        (lambda rows: _read(later[rows], kind, dtype, spans=scale_free)),
    )
    for (rows, columns), writes, reads in tiles(len(earlier), len(later), each, *makers):
        if scale_free:
            writes, reads = (Thin(*2 * [row_directions(some.A)]) for some in (writes, reads))
        norms = writes.squares.sqrt()[:, None] * reads.squares.sqrt()
        products = product_norms(writes, reads, possible[rows, columns])
        score[rows, columns] = torch.where(
            possible[rows, columns] & (norms > 0),
            products / norms.clamp_min(torch.finfo(dtype).tiny),
            0.0,
        )
        if written is not None:
            expected[columns] = (
                (reads.A * reads.B)[..., written].sum((1, 2)) / reads.squares
            ).sqrt()
    sizes = earlier.d_model, earlier.d_head, later.d_head
    chance = (
        expected / math.sqrt(int(written.sum()))
        if written is not None
        else composition_baseline(*sizes, baseline, scale_free=scale_free, seed=seed)
    )
    return Composition(score, chance, possible, kind, earlier.names, later.names)


def _written(heads: Heads, dtype: torch.dtype, *, spans: bool = False) -> Thin:
    """`W_V W_O`, by what it writes."""
    return thin(heads.W_O.to(dtype), heads.W_V.to(dtype), spans=spans)


def _read(heads: Heads, kind: str, dtype: torch.dtype, *, spans: bool = False) -> Thin:
    """The transpose of the later head's matrix `A B^T`, by what it reads."""
    sides: Any = {"Q": ("W_Q", "W_K"), "K": ("W_K", "W_Q"), "V": ("W_V", "W_O")}
    left, right = sides[kind]
    other = heads.W_O.mT if right == "W_O" else getattr(heads, right)
    return thin(getattr(heads, left).to(dtype).mT, other.to(dtype), spans=spans)


@cache
def composition_baseline(
    d_model: int, d_early: int, d_late: int, baseline: Baseline, *, scale_free: bool, seed: int
) -> float:
    r"""The score of unrelated heads of these sizes: the mean of all pairs of two random stacks, 12 by 12 wide heads, up to 64 by 64 narrow ones.

    `"analytic"` is exact for the root mean square: turning one head's output by a uniformly random rotation makes the mean
    squared score $1/d_{model}$ whatever the spectra. `"rotated"` turns within the $c$ coordinates that some earlier head
    writes, which gives $\|P A B\|_F / (\|A B\|_F \sqrt c)$ with $P$ the projection on them: lower than $1/\sqrt c$ for a head
    that mostly reads what nobody writes, such as positions.
    """
    if baseline == "analytic":
        return 1 / math.sqrt(d_model)
    n = min(64, max(12, 512 // max(d_early, d_late)))
    early, late = (
        random_heads(n, d_model, d_early, seed=seed),
        random_heads(n, d_model, d_late, layer=1, seed=seed + 1),
    )
    result = composition_scores(early, late, "K", scale_free=scale_free, baseline="analytic")
    return result.score.double().mean().item()
