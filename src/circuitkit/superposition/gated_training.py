"""Gated blocks are trained to write what an attention layer writes."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.bridge import undisturbed
from circuitkit.checks import checked, require_at_least
from circuitkit.first_use import require_same_model
from circuitkit.rows import to_tokens
from circuitkit.superposition.block import GATES, GatedBlock, Recipe
from circuitkit.superposition.transplant import require_layer
from circuitkit.training import fit


@dataclass(frozen=True, eq=False, repr=False)
class LayerRecord:
    """What an attention layer has read and written.

    Parameters
    ----------
    x : its input, `[row, pos, d_model]`, behind the norm in front of it
    y : what its heads write, `[row, pos, d_model]`, without the output bias
    n_heads : how many heads it has

    Notes
    -----
    Source: this book.
    """

    x: Float[Tensor, "row pos d_model"]
    y: Float[Tensor, "row pos d_model"]
    n_heads: int


@checked
def record_layer(
    model: TransformerBridge, layer: int, tokens: Int[Tensor, "row pos"], batch: int = 16
) -> LayerRecord:
    """Run a model, and record what one attention layer reads and writes.

    Parameters
    ----------
    model : a `TransformerBridge`
    layer : number of the layer
    tokens : token ids, `[row, pos]`
    batch : rows that are run at once

    Returns
    -------
    The record, in float32 for a model of lower precision.

    Raises
    ------
    ValueError : for a layer without attention

    Notes
    -----
    Source: this book.
    """
    require_at_least(1, batch=batch)
    require_layer(model, layer)
    tokens = to_tokens(model, tokens)
    attention = model.blocks[layer].attn
    read_name, written_name = (f"blocks.{layer}.attn.hook_{end}" for end in ("in", "out"))
    x, y = [], []
    require_same_model(model)
    with torch.no_grad(), undisturbed(model):
        for rows in tokens.split(batch):
            _, cache = model.run_with_cache(rows, names_filter=[read_name, written_name])
            bias = 0.0 if attention.b_O is None else attention.b_O
            x.append(cache[read_name])
            y.append(cache[written_name] - bias)
    dtype = torch.promote_types(x[0].dtype, torch.float32)
    return LayerRecord(torch.cat(x).to(dtype), torch.cat(y).to(dtype), attention.W_Q.shape[0])


@dataclass(frozen=True, eq=False)
class GatedRuns:
    """Trained blocks, one for each initialisation.

    Parameters
    ----------
    blocks : the blocks
    loss : of each block, error plus alpha times penalty on rows that it was not trained on
    unexplained : of each block, the fraction of the original's variance that it does not explain
    training_loss : `[step, run]`

    Notes
    -----
    Source: see `train_gated`.
    """

    blocks: tuple[GatedBlock, ...]
    loss: tuple[float, ...]
    unexplained: tuple[float, ...]
    training_loss: Float[Tensor, "step run"]

    @property
    def failed(self) -> tuple[int, ...]:
        """Runs whose loss is not a number; `best` never is one of them."""
        return tuple(run for run, loss in enumerate(self.loss) if not math.isfinite(loss))

    @property
    def best(self) -> int:
        """The run with the lowest loss."""
        finite = [run for run in range(len(self.loss)) if run not in self.failed]
        if not finite:
            raise ValueError("The loss of every run is not a number. Lower lr or alpha.")
        return min(finite, key=self.loss.__getitem__)

    @property
    def block(self) -> GatedBlock:
        """The block of the best run."""
        return self.blocks[self.best]


@checked
def train_gated(
    training: LayerRecord,
    held_back: LayerRecord,
    recipe: Recipe = GATES,
    *,
    inits: int = 8,
    seed: int = 0,
) -> GatedRuns:
    """Train gated blocks to write what an attention layer writes, several side by side.

    Parameters
    ----------
    training : what the layer read and wrote, see `record_layer`
    held_back : the same on other rows, for the losses that are reported
    recipe : see `Recipe`
    inits : number of runs, from different initial weights
    seed : for initial weights

    Returns
    -------
    The blocks with their losses. Put one into the model by `with_gated_layer`.

    Raises
    ------
    ValueError : for no runs, and for records of layers of different sizes

    Notes
    -----
    Runs do not depend on each other. Training amplifies rounding, so another processor finds other
    blocks: compare rates, not blocks. Source: "Gated Attention Blocks" (2024), section "Gated
    Attention Block Training".
    """
    require_at_least(1, inits=inits)
    if training.x.shape[-1] != held_back.x.shape[-1]:
        raise ValueError("The two records differ in d_model. Record one layer of one model.")
    seeds = [seed_of(seed, run) for run in range(inits)]
    objectives = [objective_of(training, recipe, run_seed) for run_seed in seeds]
    parameters, buffers = stack_module_state(objectives)

    def terms(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return functional_call(objectives[0], (parameters, buffers), (x, y))

    terms_of_all = vmap(terms, in_dims=(0, 0, None, None))

    def loss_at(step: int) -> Float[Tensor, " run"]:
        rows = torch.arange(step * recipe.batch, (step + 1) * recipe.batch) % len(training.x)
        error, penalty = terms_of_all(parameters, buffers, training.x[rows], training.y[rows])
        return error + recipe.alpha_at(step) * penalty

    adam = partial(torch.optim.Adam, fused=True)
    training_loss = fit(
        parameters.values(), loss_at, recipe.steps, learning_rate=recipe.lr_at, optimizer=adam
    )
    for run, objective in enumerate(objectives):
        own = {name: value[run].detach() for name, value in parameters.items()}
        objective.load_state_dict(own, strict=False)
        objective.requires_grad_(False)
    with torch.no_grad():
        error, penalty = terms_of_all(parameters, buffers, held_back.x, held_back.y)
    loss = error + recipe.alpha * penalty
    centred = held_back.y - held_back.y.mean((0, 1))
    unexplained = error * objectives[0].error_unit / float(centred.square().sum(-1).mean())
    blocks = tuple(objective.block for objective in objectives)
    return GatedRuns(blocks, tuple(loss.tolist()), tuple(unexplained.tolist()), training_loss)


def objective_of(training: LayerRecord, recipe: Recipe, seed: int) -> "Objective":
    """A new block with its loss."""
    mean_square = float(training.y.square().sum(-1).mean())
    d_model = training.x.shape[-1]
    rms = math.sqrt(mean_square)
    dtype = training.x.dtype
    block = GatedBlock(
        recipe, training.n_heads, d_model, target_rms=rms, seed=seed, dtype=dtype
    ).to(training.x.device)
    error_unit = mean_square if recipe.relative_error else float(d_model)
    write_unit = float(training.y.abs().sum(-1).mean())
    return Objective(block, error_unit=error_unit, write_unit=write_unit)


class Objective(nn.Module):
    """The two terms of a block's loss: the squared error in this unit, and the penalty."""

    def __init__(self, block: GatedBlock, *, error_unit: float, write_unit: float) -> None:
        super().__init__()
        self.block = block
        self.error_unit = error_unit
        # 1 if every logit is written by one head
        self.penalty_unit = write_unit if block.recipe.penalty == "write" else 1.0

    def forward(
        self, x: Float[Tensor, "row pos d_model"], y: Float[Tensor, "row pos d_model"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Both terms on some rows."""
        gates = self.block.gates(x)
        z = self.block.z(x, gates)
        error = (self.block.write(z) - y).square().sum(-1).mean()
        penalty = self.block.penalty(gates, z)
        return error / self.error_unit, penalty / self.penalty_unit


def seed_of(seed: int, run: int) -> int:
    """A seed for a run: far apart for neighbouring numbers, the same on every machine."""
    return int(np.random.SeedSequence([seed, run]).generate_state(1)[0])
