"""Training gated blocks on a position-free toy model, many initialisations at once, through count tables."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Count, Seed, Trainable, public
from circuitkit.superposition._block import PARAMETERS, GatedBlock, optimise, untrained
from circuitkit.superposition._recipe import GATES, Recipe
from circuitkit.superposition._tables import count_batch, loss_terms, pair_tables
from circuitkit.superposition._task import SkipTrigramTask
from circuitkit.superposition._toy import ToyModel


@public
@dataclass(frozen=True, eq=False, repr=False)
class GatedModel:
    """A toy model whose attention layer is replaced by a gated block; call it as `head_verdict` needs.

    **Source**: see `train_gated`.
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
    """What `train_gated` returns: every initialisation, and the one with the lowest loss as `.model`.

    **Source**: see `train_gated`.
    """

    models: tuple[GatedModel, ...]
    loss: tuple[float, ...]
    """Error plus alpha times penalty on fresh prompts, at full alpha: what the runs are chosen by."""
    fvu: tuple[float, ...]
    """Squared error on fresh prompts over the variance of the original's output."""
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
        losses = [math.inf if math.isnan(loss) else loss for loss in self.loss]
        return min(range(len(losses)), key=losses.__getitem__)

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
    data_seed: Seed | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Train gated blocks to write what the original's attention layer writes; `inits` of them side by side.

    `original` is a `ToyModel` (trained through count tables, exact; the result is a `GatedRuns`) or a `LayerRecord` of
    any attention layer (plain form, see `train_gated_layer`). Training runs in the original's dtype; run `i` is the same
    whatever `inits` is, up to rounding. Training amplifies rounding (penalties with a power below 1 have steep slopes near
    0), so another processor finds another block after some hundred steps, in float64 too: compare rates, not blocks. A
    run whose loss becomes NaN is named in `.failed`; the others are not touched by it. `progress(step, steps)` is called as it goes.

    **Source**: "Gated Attention Blocks", section "Gated Attention Block Training"; count tables and several runs at
    once are this book's.
    """
    recipe = recipe if steps is None else recipe.but(steps=steps)
    if recipe.init in ("pca", "axes") and isinstance(original, ToyModel):
        raise ValueError(f"train_gated got init={recipe.init!r} and a ToyModel; expected a LayerRecord, whose axes are known. Write init='xavier'.")
    if not isinstance(original, ToyModel):
        from circuitkit.superposition._layer import train_gated_layer

        return train_gated_layer(original, recipe, seed=seed, progress=progress)
    data = _Data(original, recipe, run_seed(seed if data_seed is None else data_seed, 10_000))
    blocks = [
        GatedBlock(
            recipe, len(original.heads), original.heads.d_model,
            target_rms=data.rms, seed=run_seed(seed, i), original=original.heads, dtype=original.W_E.dtype,
        ).to(original.W_E.device)
        for i in range(inits)
    ]  # fmt: skip
    p = stack_parameters(blocks, recipe)
    optimise(recipe, p, lambda step: data.loss(p, step, recipe.alpha_at(step)), progress)
    return _finish(original, recipe, blocks, p, data)


def run_seed(seed: int, i: int) -> int:
    """A seed for run `i`: far apart for neighbouring `(seed, i)`, the same on every machine."""
    return int(np.random.SeedSequence([seed, i]).generate_state(1)[0])


def stack_parameters(blocks: list[GatedBlock], recipe: Recipe) -> dict[str, Tensor]:
    """The parameters of several blocks with a leading run axis, as leaves that require grad where they are trained."""
    held = untrained(recipe)
    return {
        name: torch.stack([getattr(block, name).detach() for block in blocks]).requires_grad_(name not in held)
        for name in PARAMETERS
    }


class _Data:
    """Training batches as count tables with the original's outputs, and one fresh batch for the final figures."""

    def __init__(self, original: ToyModel, recipe: Recipe, seed: int, fresh: int = 2000) -> None:
        task: SkipTrigramTask = original.task
        self.recipe, self.original, self.embed = recipe, original, original.W_E
        place = original.W_E.device
        tokens = task.sample(recipe.n_prompts, seed).to(place)
        whole = [part for part in tokens.split(recipe.batch) if len(part) == recipe.batch]
        self.batches = [count_batch(part, task.d_vocab, original.W_E.dtype) for part in whole[: recipe.steps]]
        self.targets = [self._target(part, batch) for part, batch in zip(whole, self.batches, strict=False)]
        rows = [(b.weight[..., None], y) for b, y in zip(self.batches, self.targets, strict=True)]
        n = sum(float(b.weight.sum()) for b in self.batches)
        self.mean_square = sum(float((w * y.square()).sum()) for w, y in rows) / n
        self.l1 = sum(float((w * y.abs()).sum()) for w, y in rows) / n
        self.rms = math.sqrt(self.mean_square)
        if not self.mean_square > 0:
            raise ValueError("the original's attention layer writes nothing on these prompts, so there is nothing to learn")
        checking = task.sample(fresh, seed + 1).to(place)
        self.fresh = count_batch(checking, task.d_vocab, original.W_E.dtype)
        self.fresh_target = self._target(checking, self.fresh)

    def _target(self, tokens: Tensor, batch: Any) -> Float[Tensor, "d_vocab row d_model"]:
        written = self.original.heads.results(self.embed[tokens]).sum(-3)
        return written.flatten(0, 1)[batch.index]

    def error(self, squared: Tensor) -> Tensor:
        """The mean squared error of a row in the recipe's unit."""
        return squared / (self.original.heads.d_model if self.recipe.error == "mse" else self.mean_square)

    def loss(self, p: dict[str, Tensor], step: int, alpha: float) -> Float[Tensor, "run"]:
        i, active = step % len(self.batches), self.recipe.top_k_at(step, p["W_V"].shape[1])
        squared, penalty = self._terms(p, self.batches[i], self.targets[i], active)
        return self.error(squared) + alpha * penalty

    def _terms(self, p: dict[str, Tensor], batch: Any, target: Tensor, active: int | None = None) -> tuple[Tensor, Tensor]:
        return loss_terms(self.recipe, p, self.embed, batch, target, self.l1, self.rms, active)


@torch.no_grad()
def _finish(original: ToyModel, recipe: Recipe, blocks: list[GatedBlock], p: dict[str, Tensor], data: _Data) -> GatedRuns:
    squared, penalty = data._terms(p, data.fresh, data.fresh_target)
    weight = (data.fresh.weight / data.fresh.n_rows)[..., None]
    mean = (weight * data.fresh_target).sum((0, 1))
    variance = float((weight * (data.fresh_target - mean).square()).sum())
    loss = data.error(squared) + recipe.alpha * penalty
    _, gate, _, _ = pair_tables(recipe, p, data.embed)
    failed = []
    for i, block in enumerate(blocks):
        for name in PARAMETERS:
            getattr(block, name).copy_(p[name][i])
        if not math.isfinite(float(loss[i])):
            failed.append(f"init {i}: the loss is {float(loss[i])}; lower lr={recipe.lr} or alpha={recipe.alpha}")
    return GatedRuns(
        models=tuple(GatedModel(block.requires_grad_(False), original) for block in blocks),
        loss=tuple(loss.tolist()),
        fvu=tuple((squared / variance).tolist()),
        penalty=tuple(penalty.tolist()),
        value_bias=tuple(p["b_V"].abs().amax((1, 2)).tolist()),
        mean_gate=tuple((gate.mean(1) * data.fresh.pairs_causal).sum((-2, -1)).tolist()),
        failed=tuple(failed),
        recipe=recipe,
    )
