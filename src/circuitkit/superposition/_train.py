"""Training gated blocks on a position-free toy model, many initialisations at once, through count tables."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Count, Seed, Trainable, public
from circuitkit.superposition._block import PARAMETERS, GatedBlock, optimise, untrained
from circuitkit.superposition._recipe import GATES, Recipe
from circuitkit.superposition._tables import CountBatch, count_batch, loss_terms, pair_tables
from circuitkit.superposition._toy import ToyModel


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
        return min(range(len(self.loss)), key=lambda i: math.inf if math.isnan(self.loss[i]) else self.loss[i])

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
        raise ValueError(f"train_gated got init={recipe.init!r} and a ToyModel; expected a LayerRecord, whose axes are known. Write init='xavier'.")
    if not isinstance(original, ToyModel):
        from circuitkit.superposition._layer import train_gated_layer

        return train_gated_layer(original, recipe, seed=seed, progress=progress)
    training = Training(original, recipe, [run_seed(seed, i) for i in range(inits)], run_seed(seed, 10_000))
    optimise(recipe, training.p, training.loss, progress)
    return training.finished()


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


class Training:
    """Blocks that learn what an original's layer writes, on prompts as count tables: what `train_gated` and studies go through."""

    def __init__(self, original: ToyModel, recipe: Recipe, seeds: Sequence[int], data_seed: int) -> None:
        self.original, self.recipe, like = original, recipe, original.W_E
        prompts = original.task.sample(recipe.n_prompts, data_seed).split(recipe.batch)[: recipe.steps]
        self.batches = [self._counted(part) for part in prompts if len(part) == recipe.batch]
        n = sum(torch.stack([batch.weight.sum() for batch, _ in self.batches]).tolist())
        self.mean_square, self.l1 = (
            sum(torch.stack([(batch.weight[..., None] * size(y)).sum() for batch, y in self.batches]).tolist()) / n
            for size in (torch.square, torch.abs)
        )
        if not self.mean_square > 0:
            raise ValueError("the original's attention layer writes nothing on these prompts, so there is nothing to learn")
        self.rms = math.sqrt(self.mean_square)
        self.fresh = self._counted(original.task.sample(2000, data_seed + 1))
        sizes: Any = {"n_heads": len(original.heads), "d_model": original.heads.d_model, "target_rms": self.rms}
        made = (GatedBlock(recipe, **sizes, seed=seed, original=original.heads, dtype=like.dtype) for seed in seeds)
        self.blocks = [block.to(like.device) for block in made]
        self.p = stack_parameters(self.blocks, recipe)

    def _counted(self, tokens: Tensor) -> tuple[CountBatch, Float[Tensor, "d_vocab row d_model"]]:
        """Prompts as count tables, and what the original's layer writes in each row."""
        like = self.original.W_E
        batch = count_batch(tokens := tokens.to(like.device), self.original.task.d_vocab, like.dtype)
        return batch, self.original.heads.results(like[tokens]).sum(-3).flatten(0, 1)[batch.index]

    def _terms(self, batch: CountBatch, target: Tensor, active: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Squared error, the same in the recipe's unit, and the penalty, `[run]` each."""
        squared, penalty = loss_terms(self.recipe, self.p, self.original.W_E, batch, target, self.l1, self.rms, active)
        return squared, squared / (target.shape[-1] if self.recipe.error == "mse" else self.mean_square), penalty

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
                failed.append(f"init {i}: the loss is {losses[i]}; lower lr={recipe.lr} or alpha={recipe.alpha}")
        return GatedRuns(
            models=tuple(GatedModel(block.requires_grad_(False), self.original) for block in self.blocks),
            loss=tuple(losses),
            fvu=tuple((squared / variance).tolist()),
            penalty=tuple(penalty.tolist()),
            value_bias=tuple(p["b_V"].abs().amax((1, 2)).tolist()),
            mean_gate=tuple((gate.mean(1) * fresh.pairs_causal).sum((-2, -1)).tolist()),
            failed=tuple(failed),
            recipe=recipe,
        )
