"""The gated attention block: attention whose pattern is multiplied by gates.

It is trained to replace a layer by more heads, of which few are open at a time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from circuitkit.checks import checked, require_at_least, require_not_negative, require_positive
from circuitkit.heads import allowed_pairs

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


def require_shares(**numbers: float | int) -> None:
    """Raise a `ValueError` if a number is not between 0 and 1."""
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise ValueError(f"{name}={number} must be a share, between 0 and 1.")


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
