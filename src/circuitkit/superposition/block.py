"""The gated attention block: attention whose pattern is multiplied by gates.

It is trained to replace a layer by more heads, of which few are open at a time.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.component_setup import (
    replace_remote_component,
    setup_submodules,
)
from transformer_lens.model_bridge.generalized_components import AttentionBridge, LinearBridge
from transformer_lens.model_bridge.sources.native import NativeAttention

from circuitkit.bridge import require_same_model, undisturbed
from circuitkit.checks import (
    checked,
    require_at_least,
    require_finite,
    require_not_negative,
    require_positive,
    require_shares,
    to_tokens,
)
from circuitkit.conversion.convert import copy_model
from circuitkit.heads import allowed_pairs
from circuitkit.training import fit

Gate = Callable[[Tensor], Tensor]

EPSILON = 1e-3
"""Added to sizes in the penalty on writing: the slope of |x|^0.6 is infinite at 0."""


def clamped(score: Tensor) -> Tensor:
    """The post's gate: the score itself, cut off at 0 and 1."""
    return score.clamp(0, 1)


# Recipes


@dataclass(frozen=True)
class Recipe:
    """A gated block and how it is trained. The defaults are the post's.

    Parameters
    ----------
    expansion : heads of the block for each head of the original
    d_head : width of queries, keys and values
    d_gate : width of the queries and keys of gates
    gate : turns gate scores into gates, for example `torch.sigmoid`; None for a block without gates
    value_bias : whether values have a bias. It is not normalised, which is the post's loophole.
    normalise : whether W_V and W_O have unit length along d_model at every step
    fixed_scale : whether outputs are multiplied by e times the root mean square of the target
    relative_error : whether the squared error is divided by the target's mean square, so that
        `alpha` has no unit; otherwise it is the mean over elements
    penalty : `"gate"` on gates that are open for the same pair; `"write"` on what heads write to
        the same logit (for `d_head=1`); or `"none"`
    power : the p of the penalty's p-norm across heads
    pairs : which query-key pairs the penalty on gates averages over; the post has `"all"`
    alpha : weight of the penalty
    alpha_warmup : share of the steps in which alpha grows as a square
    alpha_tail : share of the steps, at the end, in which alpha is a tenth
    lr : learning rate
    lr_warmup : share of the steps in which the learning rate grows
    cosine : whether the learning rate falls to 0 along half a cosine
    steps, batch : training steps, and rows in a step. The rows of a record are used again and again
        in the same order.
    n_prompts : how many prompts make a record of the book's task; `train_gated` takes records

    Raises
    ------
    ValueError : for settings that exclude each other, and for numbers that are too small

    Notes
    -----
    Source: "Gated Attention Blocks" (2024) and its public configuration.
    """

    expansion: int = 2
    d_head: int = 1
    d_gate: int = 1
    gate: Gate | None = clamped
    value_bias: bool = True
    normalise: bool = True
    fixed_scale: bool = False
    relative_error: bool = False
    penalty: Literal["gate", "write", "none"] = "gate"
    power: float = 0.6
    pairs: Literal["all", "causal"] = "all"
    alpha: float = 0.3
    alpha_warmup: float = 0.0
    alpha_tail: float = 0.0
    lr: float = 1e-3
    lr_warmup: float = 0.0
    cosine: bool = False
    steps: int = 100_000
    batch: int = 1000
    n_prompts: int = 100_000

    def __post_init__(self) -> None:
        require_at_least(1, expansion=self.expansion, d_head=self.d_head, steps=self.steps)
        require_at_least(1, d_gate=self.d_gate, batch=self.batch, n_prompts=self.n_prompts)
        require_positive(power=self.power)
        require_shares(
            alpha_warmup=self.alpha_warmup, alpha_tail=self.alpha_tail, lr_warmup=self.lr_warmup
        )
        require_not_negative(alpha=self.alpha, lr=self.lr)
        if self.penalty == "write" and self.d_head != 1:
            raise ValueError("The penalty 'write' needs heads of d_head=1. Write penalty='gate'.")
        if self.penalty == "gate" and self.gate is None:
            raise ValueError("The penalty 'gate' needs a gate. Write penalty='write' or 'none'.")

    def but(self, **changes: Any) -> "Recipe":
        """The same recipe with some settings changed."""
        return replace(self, **changes)

    def alpha_at(self, step: int) -> float:
        """The weight of the penalty at a step (0 .. steps - 1)."""
        require_at_least(0, step=step)
        done = step / self.steps
        if self.alpha_tail and done >= 1 - self.alpha_tail:
            return 0.1 * self.alpha
        if self.alpha_warmup:
            return self.alpha * min(1.0, done / self.alpha_warmup) ** 2
        return self.alpha

    def lr_at(self, step: int) -> float:
        """The learning rate at a step."""
        require_at_least(0, step=step)
        done = (step + 1) / self.steps
        if done <= self.lr_warmup:
            return self.lr * done / self.lr_warmup
        if not self.cosine:
            return self.lr
        share = (done - self.lr_warmup) / max(1 - self.lr_warmup, 1e-9)
        return self.lr * (1 + math.cos(math.pi * share)) / 2


Recipe.__init__ = checked(Recipe.__init__)


FAST = Recipe(
    expansion=3,
    value_bias=False,
    relative_error=True,
    pairs="causal",
    alpha_warmup=0.7,
    alpha_tail=0.2,
    lr=3e-2,
    lr_warmup=0.02,
    cosine=True,
    steps=1000,
    batch=50,
    n_prompts=10_000,
)
GATES = FAST.but(penalty="gate", fixed_scale=True, alpha=2.0)
"""The post's idea without its loopholes: few open gates, a fixed output scale, no value bias."""
WRITES = FAST.but(penalty="write", normalise=False, alpha=0.3)
"""A penalty on what heads write, not on gates. `WRITES.but(gate=None)` is its control."""


# The block


class GatedBlock(nn.Module):
    """`out = sum_h (gate_h * pattern_h) (x W_V + b_V) W_O`: patterns are not normalised again.

    `gate[dst, src] = clamp((x W_GQ + b_GQ) . (x W_GK + b_GK), 0, 1)`, or what the recipe's gate
    makes of these scores. The pattern is the usual causal softmax.

    Parameters
    ----------
    recipe : see `Recipe`
    n_heads : heads of the original layer; the block has `recipe.expansion` times as many
    d_model : width of the stream
    target_rms : root mean square length of what the original layer writes, for `fixed_scale`
    seed : weights start Xavier-normal, those of gates orthonormal across heads
    dtype : of the weights

    Notes
    -----
    Source: "Gated Attention Blocks" (2024), section "Gated Attention Mechanism".

    Examples
    --------
    >>> block = GatedBlock(GATES, n_heads=4, d_model=12)
    >>> block.n_heads, block(torch.eye(12)[None]).shape
    (12, torch.Size([1, 12, 12]))
    """

    output_scale: Tensor

    def __init__(
        self,
        recipe: Recipe,
        n_heads: int,
        d_model: int,
        *,
        target_rms: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_at_least(1, n_heads=n_heads, d_model=d_model)
        require_not_negative(target_rms=target_rms)
        self.recipe = recipe
        self.n_heads = n_heads * recipe.expansion
        generator = torch.Generator().manual_seed(seed)

        def parameter(*shape: int, init: Callable = nn.init.xavier_normal_) -> nn.Parameter:
            value = torch.empty(self.n_heads, *shape, dtype=dtype)
            init(value, generator=generator)
            return nn.Parameter(value)

        d_head = recipe.d_head
        self.W_Q = parameter(d_model, d_head)
        self.W_K = parameter(d_model, d_head)
        self.W_V = parameter(d_model, d_head)
        self.W_O = parameter(d_head, d_model)
        self.b_Q = parameter(d_head)
        self.b_K = parameter(d_head)
        self.b_V = parameter(d_head)
        self.W_GQ = parameter(d_model, recipe.d_gate, init=nn.init.orthogonal_)
        self.W_GK = parameter(d_model, recipe.d_gate, init=nn.init.orthogonal_)
        self.b_GQ = nn.Parameter(torch.zeros(self.n_heads, recipe.d_gate, dtype=dtype))
        self.b_GK = nn.Parameter(torch.zeros(self.n_heads, recipe.d_gate, dtype=dtype))
        if not recipe.value_bias:
            nn.init.zeros_(self.b_V).requires_grad_(False)
        scale = math.e * target_rms if recipe.fixed_scale else 1.0
        self.register_buffer("output_scale", torch.tensor(scale, dtype=dtype))

    def used_weights(self) -> tuple[Tensor, Tensor]:
        """W_V `[head, d_model, d_head]` and W_O `[head, d_head, d_model]`, normalised and scaled."""
        W_V, W_O = self.W_V, self.W_O
        if self.recipe.normalise:
            W_V = W_V / W_V.square().sum(-2, keepdim=True).sqrt()
            W_O = W_O / W_O.square().sum(-1, keepdim=True).sqrt()
        return W_V, W_O * self.output_scale

    def gates(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos pos"]:
        """The gate of every destination and source, non-causal pairs included."""
        q = torch.einsum("...pm,hmg->...hpg", x, self.W_GQ) + self.b_GQ[:, None]
        k = torch.einsum("...pm,hmg->...hpg", x, self.W_GK) + self.b_GK[:, None]
        score = q @ k.mT  # [*batch, head, dst, src]
        return torch.ones_like(score) if self.recipe.gate is None else self.recipe.gate(score)

    def pattern(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos pos"]:
        """The attention pattern before it is multiplied by the gates."""
        q = torch.einsum("...pm,hmd->...hpd", x, self.W_Q) + self.b_Q[:, None]
        k = torch.einsum("...pm,hmd->...hpd", x, self.W_K) + self.b_K[:, None]
        # Sources come before destinations here, because softmax is slow along a short last axis.
        scores = k @ q.mT / math.sqrt(self.recipe.d_head)  # [*batch, head, src, dst]
        allowed = allowed_pairs("causal", x.shape[-2], x.device)
        return scores.masked_fill(~allowed.T, -math.inf).softmax(-2).mT

    def z(self, x: Tensor, gates: Tensor) -> Float[Tensor, "*batch pos head d_head"]:
        """What each head gathers."""
        v = torch.einsum("...pm,hmd->...hpd", x, self.used_weights()[0]) + self.b_V[:, None]
        gathered = (gates * self.pattern(x)) @ v  # [*batch, head, pos, d_head]
        return gathered.transpose(-3, -2)

    def write(self, z: Float[Tensor, "*batch pos head d_head"]) -> Tensor:
        """What the block writes, `[*batch, pos, d_model]`."""
        return torch.einsum("...phd,hdm->...pm", z, self.used_weights()[1])

    def forward(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The block's output."""
        return self.write(self.z(x, self.gates(x)))

    def penalty(
        self,
        gates: Float[Tensor, "*batch head pos pos"],
        z: Float[Tensor, "*batch pos head d_head"],
    ) -> Float[Tensor, ""]:
        """The recipe's penalty without alpha, from gates and from what heads gather.

        On gates: the mean over pairs of `(sum_h gate_h^p)^(1/p)`. On writes: the mean over
        positions of `sum_u (sum_h ((|z_h| + e) (|W_O[h, u]| + e))^p)^(1/p)` with e = 0.001. Both
        are larger if heads share a pair, or a logit.
        """
        power = self.recipe.power
        if self.recipe.penalty == "none":
            return gates.new_zeros(())
        if self.recipe.penalty == "write":
            W_O = self.used_weights()[1][:, 0]  # [head, d_model]
            joint = (z[..., 0].abs() + EPSILON).pow(power) @ (W_O.abs() + EPSILON).pow(power)
            return joint.pow(1 / power).sum(-1).mean()
        powers = gates.clamp(min=1e-30).pow(power)  # the slope at 0 would be infinite
        joint = powers.sum(-3).pow(1 / power)  # [*batch, dst, src]
        if self.recipe.pairs == "all":
            return joint.mean()
        allowed = allowed_pairs("causal", gates.shape[-1], gates.device)
        return (joint * allowed).sum((-2, -1)).mean() / allowed.sum()


# A block in a model


class GatedAttention(NativeAttention):
    """An attention layer of transformer-lens whose pattern is multiplied by the gates of a block.

    `hook_pattern` sees the pattern after the multiplication, which is what values are mixed with.
    """

    def __init__(self, block: GatedBlock, bias: Tensor) -> None:
        config = TransformerBridgeConfig(
            d_model=len(bias),
            d_head=block.recipe.d_head,
            n_heads=block.n_heads,
            n_layers=1,
            n_ctx=1,  # the mask is made for each input, because n_ctx^2 can be much
            attn_only=True,
            architecture="TransformerLensNative",
        )
        super().__init__(config)
        self.block = copy.deepcopy(block)  # the caller's stays trainable
        W_V, W_O = block.used_weights()
        sides = {"q": (block.W_Q, block.b_Q), "k": (block.W_K, block.b_K), "v": (W_V, block.b_V)}
        weights = {"o.weight": W_O.flatten(0, 1).T, "o.bias": bias}
        for side, (W, b) in sides.items():
            weights |= {f"{side}.weight": W.mT.flatten(0, 1), f"{side}.bias": b.flatten()}
        for name, value in weights.items():
            self.get_parameter(name).data = value.detach().clone().to(bias)
        self.requires_grad_(False)

    def gates(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos pos"]:
        """The gates on this input of the layer."""
        return self.block.gates(x)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """What the heads write, and the gated pattern."""
        allowed = allowed_pairs("causal", hidden_states.shape[1], hidden_states.device)
        self.causal_mask = ~allowed
        gates = self.gates(hidden_states)
        pattern_hook = kwargs.pop("pattern_fn", None)

        def gated(pattern: Tensor) -> Tensor:
            pattern = gates * pattern
            return pattern if pattern_hook is None else pattern_hook(pattern)

        return super().forward(hidden_states, *args, pattern_fn=gated, **kwargs)


@checked
def with_gated_layer(model: TransformerBridge, layer: int, block: GatedBlock) -> TransformerBridge:
    """A copy of a model with a gated block in the place of an attention layer.

    The heads of the block are ordinary heads of the copy: they have names, can be ablated, and
    `blocks.{layer}.attn.hook_pattern` has their gated patterns. The layer's output bias stays. Gates
    are none of the inputs Q, K and V: they always read the whole stream, whatever wires and inputs
    of the heads are cut.

    Parameters
    ----------
    model : a causal `TransformerBridge`
    layer : number of the layer
    block : a block of the same d_model, see `train_gated`

    Returns
    -------
    model : a copy. Generate from it without a cache of keys and values.

    Raises
    ------
    ValueError : if the block does not fit, or holds NaN

    Notes
    -----
    Error: rounding. Source: this book.

    Examples
    --------
    >>> import circuitkit as ck
    >>> model = ck.load_model("two-layer")
    >>> gated = with_gated_layer(model, 1, GatedBlock(GATES, n_heads=4, d_model=160))
    >>> gated.blocks[1].attn.W_Q.shape
    torch.Size([12, 160, 1])
    """
    require_layer(model, layer)
    d_model = block.W_Q.shape[1]
    if d_model != model.cfg.d_model:
        raise ValueError(
            f"The block has d_model = {d_model}, and the model has {model.cfg.d_model}. Train the "
            "block on a record of this model."
        )
    for name, weight in block.named_parameters():
        require_finite(weight, f"{name} of the block")
    twin = copy_model(model)
    old = twin.blocks[layer].attn
    bias = torch.zeros_like(model.W_E[0]) if old.b_O is None else old.b_O.detach()
    attention = GatedAttention(block, bias)
    sides: dict[str, Any] = {side: LinearBridge(name=side) for side in "qkvo"}
    bridge = AttentionBridge(name=old.name, config=attention.cfg, submodules=sides)
    bridge.set_original_component(attention)
    setup_submodules(bridge, twin.adapter, attention)
    twin.blocks[layer].add_module("attn", bridge)
    replace_remote_component(bridge, old.name, twin.blocks[layer].original_component)
    if len(twin.blocks) == 1:
        twin.cfg.n_heads, twin.cfg.d_head = block.n_heads, block.recipe.d_head
    name_hooks(twin)
    return twin.train(model.training)


def require_layer(model: TransformerBridge, layer: int) -> None:
    """Raise a `ValueError` unless this is a causal attention layer of the model."""
    n_layers = len(model.blocks)
    if not 0 <= layer < n_layers or "attn" not in model.blocks[layer]._modules:
        raise ValueError(
            f"Layer {layer} of this model has no attention. Its layers are 0 to {n_layers - 1}."
        )
    if str(getattr(model.cfg, "attention_dir", "causal")) != "causal":
        raise ValueError("A gated block attends causally, and this model does not.")


def name_hooks(model: TransformerBridge) -> None:
    """Give new hook points their names."""
    model.clear_hook_registry()
    model._setup_hook_compatibility()
    model._initialize_hook_registry()
    model._register_all_aliases_recursive()
    model._scan_existing_hooks(model, "")


# Training


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
