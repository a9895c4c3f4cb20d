"""Gated blocks beyond the toy: trained on the recorded input and output of any attention layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import (
    AnyModel,
    Count,
    Model,
    Names,
    Natural,
    ids,
    must,
    one_dtype,
    public,
)
from circuitkit._heads import Heads
from circuitkit._precision import full_precision, near
from circuitkit._state import require_finite, require_unhooked
from circuitkit.anatomy import anatomy, read
from circuitkit.heads import model_name
from circuitkit.superposition._block import GatedBlock, Recipe, optimise


@public
@must(
    lambda x: (
        x.numel() > 0 or "a row or more. Make a record with record_layer(bridge, layer, tokens)"
    )
)
@must(
    lambda heads, x, n_heads: (
        heads is None
        or (heads.d_model, len(heads)) == (x.shape[2], n_heads)
        or f"the layer's own {n_heads} heads of d_model {x.shape[2]}"
    )
)
@one_dtype("x", "y")
@dataclass(frozen=True, eq=False, repr=False)
class LayerRecord:
    """What an attention layer read and wrote: `x` and `y`, `[row, pos, d_model]`, output bias left out of `y`.

    **Source**: see `record_layer`.
    """

    x: Float[Tensor, "row pos d_model"]
    y: Float[Tensor, "row pos d_model"]
    n_heads: Count
    heads: Heads | None = None
    """The layer's own heads, for a block that starts from copies of them (`init="duplicate"`)."""

    def __repr__(self) -> str:
        return (
            f"LayerRecord({len(self.x)} rows of {self.x.shape[1]} positions, {self.n_heads} heads)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class GatedLayer:
    """A gated block trained to write `y` from the `x` of a `LayerRecord`, with its losses. **Source**: see `train_gated`."""

    block: GatedBlock
    loss: tuple[float, ...]
    """Training loss every 20 steps."""
    fvu: float
    """Fraction of variance unexplained: squared error over the target's variance, on rows of the record that were held back."""
    start: float
    """The same before training."""
    recipe: Recipe


@public
@ids()
def record_layer(
    model: AnyModel,
    layer: Natural,
    tokens: Int[Tensor, "row pos"],
    batch: Count = 16,
    *,
    heads: Names | None = None,
) -> LayerRecord:
    """Run any model and keep what attention layer `layer` read (after its norm, if it has one) and wrote; or what some of its
    `heads` wrote, for a block that stands for these alone.

    **Shapes**: `[row, pos, d_model]` each, in float32 for a model in half precision. **Error**: none. **Source**: this book.
    """
    require_unhooked(model, "record_layer")
    value = anatomy(model)
    layers = {sub.layer: sub for sub in value.sublayers if isinstance(sub.inside, Heads)}
    if layer not in layers or (heads is not None and len(heads) == 0):
        raise ValueError(
            f"record_layer got layer={layer}, heads={heads}; expected one of the layers with attention heads, {[*layers]}, and names of some of its heads, or None for all"
        )
    sub, xs, ys = layers[layer], [], []
    names = sub.inside.names if heads is None else (heads,) if isinstance(heads, str) else heads
    picked = [sub.inside.index(name) for name in names]
    for part in tokens.split(batch):
        run = value.run(part, watch=lambda *_: None)  # patterns are not kept
        xs.append(full_precision(run.read_by(sub, run.streams[value.find(sub.parts[0]).step])))
        ys.append(
            full_precision(
                torch.einsum("bhpd,hdm->bpm", run.z(sub)[:, picked], sub.inside.W_O[picked])
            )
        )
    return LayerRecord(
        torch.cat(xs), torch.cat(ys), len(picked), sub.inside[picked].to(xs[0].dtype)
    )


def train_gated_layer(
    record: LayerRecord,
    recipe: Recipe,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> GatedLayer:
    """One gated block trained to write `record.y` from `record.x`: the plain form, for any stream.

    The last tenth of the rows is held back for `fvu`; `recipe.batch` counts rows, used in order again and again.
    """
    n = max(1, len(record.x) * 9 // 10)
    x, y, held_x, held_y = record.x[:n], record.y[:n], record.x[n:], record.y[n:]
    if len(held_x) == 0:
        raise ValueError(
            f"{record} is too short: a tenth of the rows is held back, so record 2 rows or more"
        )
    mean_square, l1 = float(y.square().sum(-1).mean()), float(y.abs().sum(-1).mean())
    rms = math.sqrt(mean_square)
    block = GatedBlock(
        recipe, record.n_heads, x.shape[-1], target_rms=rms, seed=seed, original=record.heads
    ).to(x.device)
    if block.b_O is not None:
        _along_axes(block, record.heads, x, seed)
        block.b_O.data = y.mean((0, 1))
    unit, losses = x.shape[-1] if recipe.error == "mse" else mean_square, []

    def unexplained() -> float:
        with torch.no_grad():
            squared = torch.stack(
                [
                    (block(a) - b).square().sum()
                    for a, b in zip(held_x.split(8), held_y.split(8), strict=True)
                ]
            )
        return sum(squared.tolist()) / float((held_y - y.mean((0, 1))).square().sum())

    start = unexplained()

    def loss_at(step: int) -> Tensor:
        block.active = recipe.top_k_at(step, block.n_heads)
        rows = torch.arange(step * recipe.batch, (step + 1) * recipe.batch) % n
        error = (block(x[rows]) - y[rows]).square().sum(-1).mean() / unit
        alpha = recipe.alpha_at(step)
        loss = error + alpha * block.penalty(x[rows], l1, rms) if alpha else error
        told = step % 20 == 0 or step + 1 == recipe.steps
        value = float(loss.detach()) if told or near(loss) else 0.0
        if not math.isfinite(value):
            raise ValueError(
                f"seed {seed}: the loss became {value} at step {step}. Lower lr={recipe.lr} or alpha={recipe.alpha}."
            )
        if told:
            losses.append(value)
        return loss

    optimise(recipe, dict(block.named_parameters()), loss_at, progress)
    block.requires_grad_(False)
    block.active = recipe.top_k or block.n_heads
    return GatedLayer(block, tuple(losses), unexplained(), start, recipe)


@torch.no_grad()
def _along_axes(block: GatedBlock, original: Any, x: Tensor, seed: int) -> None:
    """Heads of rank one along the axes of what each original head writes, one for each sign, around the mean.

    With all active the block is the layer, up to the noise on queries and keys and as far as heads suffice.
    """
    share, n, rank = block.recipe.share, len(original), original.d_head
    if block.n_heads > 2 * rank * n:
        raise ValueError(
            f"init={block.recipe.init!r}: {n} heads of rank {rank} have {2 * rank * n} directions, the block has {block.n_heads} heads. Lower expansion."
        )
    values = torch.zeros(n, rank) if original.b_V is None else original.b_V
    z = (
        torch.cat([original.pattern(part) @ original.side("V", part) for part in x.split(8)])
        .transpose(0, 1)
        .flatten(1, 2)
    )
    centre = z.mean(1)
    for h in range(n):
        write, spread = original.W_O[h], (z[h] - centre[h]).T @ (z[h] - centre[h]) / len(z[h])
        axes = torch.linalg.eigh(write.T @ spread @ write)[1].flip(1)[:, :rank]
        if block.recipe.init == "axes":
            axes = (
                axes
                @ torch.linalg.qr(
                    torch.randn(rank, rank, generator=torch.Generator().manual_seed(seed + h)).to(
                        axes
                    )
                )[0]
            )
        units = [g * share + i for g in range(h, block.n_heads // share, n) for i in range(share)]
        for place, unit in enumerate(units):
            axis = (-1) ** place * axes[:, place // 2]
            block.W_V[unit, :, 0] = original.W_V[h] @ write @ axis
            block.b_V[unit] = (values[h] - centre[h]) @ write @ axis
            block.W_O[unit, 0] = axis


@public
@must(
    lambda layer, model: (
        layer < model.cfg.n_layers or f"one of the model's layers, 0 to {model.cfg.n_layers - 1}"
    )
)
@must(
    lambda block, model: (
        block.d_model == model.cfg.d_model
        or f"a block of d_model {model.cfg.d_model}, trained on this model"
    )
)
@must(
    lambda block, model: (
        len({block.of, model_name(model)} - {""}) < 2
        or f"a block trained on {model_name(model)!r}, not on {block.of!r}"
    )
)
@must(
    lambda layer, block: (
        all(read(name)[0].layer == layer for name in block.names)
        or f"the layer it was trained on, or another block: this one stands for {', '.join(block.names)}"
    ),
    "layer",
    "block",
)
@must(
    lambda without, block: (
        max(without, default=0) < block.n_heads or f"heads of the block, 0 to {block.n_heads - 1}"
    )
)
def replacing(
    model: Model, layer: Natural, block: GatedBlock, without: tuple[Natural, ...] = ()
) -> list[tuple[str, Callable]]:
    """Hooks that put the block in the place of attention layer `layer`, or of the heads of it that were recorded.

    The heads that it stands for are those of the weights as they are now; one block a layer. `without` names heads of the block to leave out. Use as `bridge.run_with_hooks(tokens, fwd_hooks=replacing(bridge, 1, block))`.
    **Source**: this book.
    """
    require_finite(model)
    some: Any = None
    if 0 < len(block.names) < model.cfg.n_heads:
        some = anatomy(model)[block.names]
    biases, seen = getattr(model, "b_O", None), {}
    bias = 0.0 if biases is None else biases[layer].detach()  # a checkpoint may have none

    def keep(value: Tensor, hook: Any) -> Tensor:
        seen["x"] = value
        return value

    def write(value: Tensor, hook: Any) -> Tensor:
        if "x" not in seen:
            raise ValueError(
                "replacing's two hooks were not used together, each once; expected one block a layer. Write fwd_hooks=replacing(model, layer, block)."
            )
        x = seen.pop("x")
        return block(x, without) + (bias if some is None else value - some.results(x).sum(-3))

    return [(f"blocks.{layer}.attn.hook_in", keep), (f"blocks.{layer}.hook_attn_out", write)]
