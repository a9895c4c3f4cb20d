"""Training gated blocks, many initialisations at once: on one-hot tokens without positions attention is arithmetic on token
counts, exact and more than ten times faster."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Count, Seed, Trainable, public
from circuitkit._precision import finest, near
from circuitkit.superposition._block import (
    EPSILON,
    GATES,
    PARAMETERS,
    GatedBlock,
    Recipe,
    across_heads,
    activation,
    effective,
    most_active,
    optimise,
    untrained,
    write_penalty,
)
from circuitkit.superposition._task import ToyModel


@dataclass(frozen=True)
class CountBatch:
    """The distinct rows of one batch, grouped by their own token and padded: `counts[token, row, key]`."""

    counts: Float[Tensor, "d_vocab row d_vocab"]
    weight: Float[Tensor, "d_vocab row"]
    """How often the row occurs; 0 for padding."""
    index: Int[Tensor, "d_vocab row"]
    """One place of the flattened batch where the row occurs."""
    row: Int[Tensor, " place"]
    """Of each place of the flattened batch, the number of its row among all, `token * rows + row`."""
    pairs_all: Float[Tensor, "d_vocab d_vocab"]
    """Share of all query-key pairs of the batch, by tokens; sums to 1. Likewise `pairs_causal` for causal pairs."""
    pairs_causal: Float[Tensor, "d_vocab d_vocab"]
    n_rows: int


def count_batch(
    tokens: Int[Tensor, "prompt pos"], d_vocab: int, dtype: torch.dtype = torch.float32
) -> CountBatch:
    """Distinct rows of a batch of prompts. **Error**: none; every row is in it, with its multiplicity."""
    (n, pos), place = tokens.shape, tokens.device
    one_hot = torch.zeros(n, pos, d_vocab, dtype=torch.int32, device=place).scatter_(
        2, tokens[..., None], 1
    )
    counts = one_hot.cumsum(1, dtype=torch.int32)
    pairs_causal = torch.einsum("npa,npb->ab", finest(one_hot), finest(counts))
    total = finest(one_hot.sum(1))
    pairs_all = total.T @ total
    keys = torch.cat([tokens.reshape(-1, 1).to(torch.int32), counts.reshape(-1, d_vocab)], 1)
    rows, inverse, weight = _unique(keys, pos)
    first = torch.empty(len(rows), dtype=torch.long, device=place).scatter_(
        0, inverse, torch.arange(len(keys), device=place)
    )
    own = rows[:, 0].long()
    sizes = torch.bincount(own, minlength=d_vocab)
    width = int(sizes.max())
    slot = (
        torch.arange(len(rows), device=place) - (sizes.cumsum(0) - sizes)[own]
    )  # rows are sorted by their own token
    padded = torch.zeros(d_vocab, width, d_vocab, dtype=dtype, device=place)
    padded[:, :, 0] = (
        1.0  # a padding row counts one key, so that its denominator is not 0; its weight is 0
    )
    padded[own, slot] = rows[:, 1:].to(dtype)
    weights, index = (
        torch.zeros(d_vocab, width, dtype=kind, device=place) for kind in (dtype, torch.long)
    )
    weights[own, slot], index[own, slot] = weight.to(dtype), first
    every, causal = ((pairs / pairs.sum()).to(dtype) for pairs in (pairs_all, pairs_causal))
    return CountBatch(padded, weights, index, (own * width + slot)[inverse], every, causal, n * pos)


def _unique(keys: Int[Tensor, "row column"], largest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows in lexical order, each row's number among them, and multiplicities."""
    base, width = largest + 1, keys.shape[1] - 1
    if base**width * width < 2**62:  # the counts of a row fit into one integer
        code = keys[:, 0].long()
        for column in range(1, width + 1):
            code = code * base + keys[:, column]
        _, inverse, weight = code.unique(return_inverse=True, return_counts=True)
    else:
        _, inverse, weight = keys.unique(dim=0, return_inverse=True, return_counts=True)
    rows = keys.new_empty(len(weight), keys.shape[1])
    rows[inverse] = keys
    return rows, inverse, weight


def pair_tables(
    recipe: Recipe, p: dict[str, Tensor], embed: Float[Tensor, "d_vocab d_model"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`(S, gate, v, W_O)`: scores and gates `[run, head, dst token, src token]`, values `[run, head, token, d_head]`."""

    def read(weight: str, bias: str) -> Tensor:
        return torch.einsum("am,rhmd->rhad", embed, p[weight]) + p[bias][:, :, None]

    W_V, b_V, W_O = effective(recipe, p)
    scores = read("W_Q", "b_Q") @ read("W_K", "b_K").transpose(-2, -1) / recipe.d_head**0.5
    gate = activation(recipe.gate, read("W_GQ", "b_GQ") @ read("W_GK", "b_GK").transpose(-2, -1))
    v = torch.einsum("am,rhmd->rhad", embed, W_V) + b_V[:, :, None]
    if recipe.share > 1:
        scores, gate = (part.repeat_interleave(recipe.share, 1) for part in (scores, gate))
    return scores, gate, v, W_O


def mixed(
    batch: CountBatch, scores: Tensor, gate: Tensor, v: Tensor
) -> Float[Tensor, "run token row head d_head"]:
    """`z` of the module docstring for every distinct row.

    Scores are centred within their row of the table; if they differ by less than `SAFE` no sum overflows or loses a key.
    Beyond that the sums are made in float64, and those of heads beyond its range, too, in windows. Where asking would wait
    for a device at each step, a softmax over `scores + log(counts)`: many times slower and always right.
    """
    if not near(scores):
        return _softmax(batch.counts, scores, gate, v)
    high, low = scores.detach().amax(-1, keepdim=True), scores.detach().amin(-1, keepdim=True)
    spread = (high - low).amax((-2, -1))
    if float(spread.max()) < SAFE[scores.dtype]:
        top, total = _sums(batch.counts, (scores - (high + low) / 2).exp(), gate, v)
        return (top / total).permute(2, 0, 1, 3, 4)
    counts, scores, gate, value, high, low = map(finest, (batch.counts, scores, gate, v, high, low))
    half = SAFE[torch.float64] / 2
    top, total = _sums(
        counts, (scores - (high + low) / 2).clamp(-half, half).exp(), gate, value
    )  # a wide head's are cut off
    z = (top / total).permute(2, 3, 0, 1, 4)
    if (wide := spread >= 2 * half).any():  # and made anew
        some = (counts, *(part[wide][None] for part in (scores, gate, value)))
        few = float(spread[wide].max()) < 10 * half
        z = z.index_put((wide,), (_windows if few else _softmax)(*some)[0].permute(2, 0, 1, 3))
    return z.permute(0, 2, 3, 1, 4).to(v.dtype)


def _sums(counts: Tensor, e: Tensor, gate: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What stands above the line and below it, `[token, row, run, head, d_head]`, below with 1 in the place of `d_head`."""
    # Two products: a slice of one joined product would have its gradient filled with zeros and added.
    summed = (torch.einsum("rhab,rhbd->abrhd", e * gate, v), e.permute(2, 3, 0, 1)[..., None])
    top, total = (
        torch.bmm(counts, part.flatten(2)).unflatten(2, part.shape[2:]) for part in summed
    )
    return top, total


def _windows(
    counts: Tensor, scores: Tensor, gate: Tensor, v: Tensor
) -> Float[Tensor, "run token row head d_head"]:
    """Each window is a centre, lower by half of what float64 holds; a row belongs to the first in which its sum reaches 1.

    There its largest key lies: what is above that window it does not have, and what is below by more is nothing beside it.
    """
    high, half = (
        scores.detach().amax(-1, keepdim=True),
        SAFE[torch.float64] / 2 - 10,
    )  # 10: a row counts a key often
    z, left = v.new_zeros(()), torch.ones((), dtype=torch.bool)
    for window in range(1, math.ceil(float((high - scores.detach()).max()) / half) + 1):
        top, total = _sums(counts, (scores - high + window * half).clamp(max=half).exp(), gate, v)
        here = left & (total >= 1)
        z, left = torch.where(here, top / total.where(here, 1.0), z), left & ~here
    return z.permute(2, 0, 1, 3, 4)


def _softmax(counts: Tensor, scores: Tensor, gate: Tensor, v: Tensor) -> Tensor:
    pattern = (scores[:, :, :, None] + counts.log()).softmax(-1)  # [run, head, token, row, key]
    return torch.einsum("rhanb,rhab,rhbd->ranhd", pattern, gate, v)


SAFE = {torch.float32: 160.0, torch.float64: 1400.0}


def loss_terms(
    recipe: Recipe,
    p: dict[str, Tensor],
    embed: Float[Tensor, "d_vocab d_model"],
    batch: CountBatch,
    target: Float[Tensor, "d_vocab row d_model"],
    target_l1: float,
    target_rms: float,
    active: int | None = None,
) -> tuple[Float[Tensor, "run"], Float[Tensor, "run"]]:
    """Mean over rows of the squared error, and the penalty without alpha, one number a run: as `GatedBlock` has them, up to
    rounding.
    """
    scores, gate, v, W_O = pair_tables(recipe, p, embed)
    z = mixed(batch, scores, gate, v)
    if recipe.top_k is not None:
        z = most_active(z[..., 0], W_O[:, None, None, :, 0].norm(dim=-1), active or recipe.top_k)[
            ..., None
        ]
    r, a, n, h, d = z.shape
    out = z.reshape(r, a * n, h * d) @ W_O.reshape(r, h * d, -1)
    weight = (batch.weight / batch.n_rows).view(-1)
    error = (out - target.view(1, a * n, -1)).square().sum(-1) @ weight
    if recipe.penalty == "gate":
        share = batch.pairs_all if recipe.pairs == "all" else batch.pairs_causal
        return error, (across_heads(gate, recipe.power, axis=1) * share).sum((-2, -1))
    if recipe.penalty == "write":
        rows = write_penalty(z[..., 0].reshape(r, a * n, h), W_O[:, :, 0], recipe.power)
        return error, rows @ weight / target_l1
    if recipe.penalty == "write_norm":
        return error, length_penalty(z, W_O, recipe.power).view(r, -1) @ weight / target_rms
    return error, torch.zeros_like(error)


def length_penalty(
    z: Float[Tensor, "run token row head d_head"], W_O: Tensor, power: float
) -> Float[Tensor, "run token row"]:
    """`(sum_h |o_h|^power)^(1 / power)` for what each head writes in a row, `o_h = z_h W_O_h`, without writing it out."""
    gram = torch.einsum("rhdm,rhem->rhde", W_O, W_O)
    square = torch.einsum("ranhd,rhde,ranhe->ranh", z, gram, z)
    return across_heads((square + EPSILON**2).sqrt(), power, axis=-1)


@public
@dataclass(frozen=True, eq=False, repr=False)
class GatedModel:
    """A toy model whose attention layer is replaced by a gated block, called as `head_verdict` needs. **Source**: see
    `train_gated`.
    """

    block: GatedBlock
    original: ToyModel

    @torch.no_grad()
    def run(
        self, tokens: Int[Tensor, "batch pos"]
    ) -> tuple[Float[Tensor, "batch head pos d_vocab"], Float[Tensor, "batch pos d_vocab"]]:
        self.original.task._require(tokens)
        x = self.original.W_E[tokens]
        return self.block.results(x) @ self.original.W_U, x @ self.original.W_U

    __call__ = run


@public
@dataclass(frozen=True, eq=False)
class GatedRuns:
    """What `train_gated` returns: every initialisation, and the one with the lowest loss as `.model`. **Source**: see
    `train_gated`.
    """

    models: tuple[GatedModel, ...]
    loss: tuple[float, ...]
    """Error plus alpha times penalty on fresh prompts, at full alpha: what the runs are chosen by."""
    fvu: tuple[float, ...]
    """Fraction of variance unexplained: squared error on fresh prompts over the variance of the original's output."""
    penalty: tuple[float, ...]
    value_bias: tuple[float, ...]
    """Largest |b_V| of the block."""
    mean_gate: tuple[float, ...]
    """Mean gate over causal pairs and heads."""
    failed: tuple[str, ...]
    """Runs whose loss was not a number, by name; they are kept in `models` and never chosen."""
    recipe: Recipe

    @property
    def best(self) -> int:
        """Index of the run with the lowest loss."""
        return min(
            range(len(self.loss)),
            key=lambda i: math.inf if math.isnan(self.loss[i]) else self.loss[i],
        )

    @property
    def model(self) -> GatedModel:
        return self.models[self.best]

    def run(self, tokens: Int[Tensor, "batch pos"]) -> tuple[Tensor, Tensor]:
        """The chosen model, so that the result itself can be judged by `head_verdict`."""
        return self.model.run(tokens)

    __call__ = run


@public
def train_gated(
    original: Trainable,
    recipe: Recipe = GATES,
    *,
    inits: Count = 8,
    seed: Seed = 0,
    steps: Count | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Train gated blocks to write what the original's attention layer writes; `inits` of them side by side.

    `original` is a `ToyModel` (trained through count tables, exact; gives `GatedRuns`) or a `LayerRecord` of any attention
    layer (gives a `GatedLayer`). Run `i` is the same whatever `inits` is, up to rounding, which training amplifies: another
    processor finds another block, so compare rates, not blocks. A run whose loss becomes NaN is named in `.failed`; the
    others are not touched by it. `progress(step, steps)` is called as it goes. **Source**: "Gated Attention Blocks", section
    "Gated Attention Block Training"; count tables and side-by-side runs are this book's.
    """
    recipe = recipe if steps is None else recipe.but(steps=steps)
    if recipe.init in ("pca", "axes") and isinstance(original, ToyModel):
        raise ValueError(
            f"train_gated got init={recipe.init!r} and a ToyModel; expected a LayerRecord, whose axes are known. Write init='xavier'."
        )
    if not isinstance(original, ToyModel):
        from circuitkit.superposition._layer import train_gated_layer

        return train_gated_layer(original, recipe, seed=seed, progress=progress)
    training = Training(
        original, recipe, [run_seed(seed, i) for i in range(inits)], run_seed(seed, 10_000)
    )
    optimise(recipe, training.p, training.loss, progress)
    return training.finished()


def run_seed(seed: int, i: int) -> int:
    """A seed for run `i`: far apart for neighbouring `(seed, i)`, the same on every machine."""
    return int(np.random.SeedSequence([seed, i]).generate_state(1)[0])


def stack_parameters(blocks: list[GatedBlock], recipe: Recipe) -> dict[str, Tensor]:
    """The parameters of several blocks with a leading run axis, as leaves that require grad where they are trained."""
    held = untrained(recipe)
    return {
        name: torch.stack([getattr(block, name).detach() for block in blocks]).requires_grad_(
            name not in held
        )
        for name in PARAMETERS
    }


class Training:
    """Blocks that learn what an original's layer writes, on prompts as count tables: what `train_gated` and studies go through."""

    def __init__(
        self, original: ToyModel, recipe: Recipe, seeds: Sequence[int], data_seed: int
    ) -> None:
        self.original, self.recipe, like = original, recipe, original.W_E
        prompts = original.task.sample(recipe.n_prompts, data_seed).split(recipe.batch)[
            : recipe.steps
        ]
        self.batches = [self._counted(part) for part in prompts if len(part) == recipe.batch]
        n = sum(torch.stack([batch.weight.sum() for batch, _ in self.batches]).tolist())
        self.mean_square, self.l1 = (
            sum(
                torch.stack(
                    [(batch.weight[..., None] * size(y)).sum() for batch, y in self.batches]
                ).tolist()
            )
            / n
            for size in (torch.square, torch.abs)
        )
        if not self.mean_square > 0:
            raise ValueError(
                "the original's attention layer writes nothing on these prompts, so there is nothing to learn"
            )
        self.rms = math.sqrt(self.mean_square)
        self.fresh = self._counted(original.task.sample(2000, data_seed + 1))
        sizes: Any = {
            "n_heads": len(original.heads),
            "d_model": original.heads.d_model,
            "target_rms": self.rms,
        }
        made = (
            GatedBlock(recipe, **sizes, seed=seed, original=original.heads, dtype=like.dtype)
            for seed in seeds
        )
        self.blocks = [block.to(like.device) for block in made]
        self.p = stack_parameters(self.blocks, recipe)

    def _counted(self, tokens: Tensor) -> tuple[CountBatch, Float[Tensor, "d_vocab row d_model"]]:
        """Prompts as count tables, and what the original's layer writes in each row."""
        like = self.original.W_E
        batch = count_batch(
            tokens := tokens.to(like.device), self.original.task.d_vocab, like.dtype
        )
        return batch, self.original.heads.results(like[tokens]).sum(-3).flatten(0, 1)[batch.index]

    def _terms(
        self, batch: CountBatch, target: Tensor, active: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Squared error, the same in the recipe's unit, and the penalty, `[run]` each."""
        squared, penalty = loss_terms(
            self.recipe, self.p, self.original.W_E, batch, target, self.l1, self.rms, active
        )
        return (
            squared,
            squared / (target.shape[-1] if self.recipe.error == "mse" else self.mean_square),
            penalty,
        )

    def loss(self, step: int) -> Float[Tensor, "run"]:
        """What a step descends, of every run."""
        active = self.recipe.top_k_at(step, self.p["W_V"].shape[1])
        _, error, penalty = self._terms(*self.batches[step % len(self.batches)], active)
        return error + self.recipe.alpha_at(step) * penalty

    @torch.no_grad()
    def finished(self) -> GatedRuns:
        """The blocks with the parameters as they are now, judged on fresh prompts."""
        recipe, p, (fresh, target) = self.recipe, self.p, self.fresh
        squared, error, penalty = self._terms(fresh, target)
        weight = (fresh.weight / fresh.n_rows)[..., None]
        mean = (weight * target).sum((0, 1))
        variance = float((weight * (target - mean).square()).sum())
        loss = error + recipe.alpha * penalty
        _, gate, _, _ = pair_tables(recipe, p, self.original.W_E)
        failed, losses = [], loss.tolist()
        for i, block in enumerate(self.blocks):
            for name in PARAMETERS:
                getattr(block, name).copy_(p[name][i])
            if not math.isfinite(losses[i]):
                failed.append(
                    f"init {i}: the loss is {losses[i]}; lower lr={recipe.lr} or alpha={recipe.alpha}"
                )
        return GatedRuns(
            models=tuple(
                GatedModel(block.requires_grad_(False), self.original) for block in self.blocks
            ),
            loss=tuple(losses),
            fvu=tuple((squared / variance).tolist()),
            penalty=tuple(penalty.tolist()),
            value_bias=tuple(p["b_V"].abs().amax((1, 2)).tolist()),
            mean_gate=tuple((gate.mean(1) * fresh.pairs_causal).sum((-2, -1)).tolist()),
            failed=tuple(failed),
            recipe=recipe,
        )
