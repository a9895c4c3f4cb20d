"""The block that replaces an attention layer, more heads held apart by gates, by a price on writing or by top-k; and all that
can be chosen about it, with the post's choices as the defaults."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from circuitkit._contract import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    Seed,
    Trained,
    must,
    number,
    public,
    reads,
    trusted,
)
from circuitkit._heads import Heads, allowed_pairs
from circuitkit._work import progress as _bar

Power = Annotated[
    float | int,
    number(0, 2, "a number above 0 and at most 2", "the post uses 0.6", 0.6, above=True),
]


@public
@must(
    lambda penalty, d_head, d_value: (
        penalty != "write"
        or (d_value or d_head) == 1
        or "d_head=1 for penalty 'write'. Write penalty='write_norm'"
    )
)
@must(
    lambda top_k, d_head, d_value: (
        top_k is None
        or (d_value or d_head) == 1
        or "heads that write one direction. Write d_value=1"
    )
)
@must(
    lambda init, d_head, d_value: (
        init not in ("pca", "axes")
        or (d_value or d_head) == 1
        or "d_value=1 for a start along axes"
    )
)
@must(
    lambda penalty, gate: (
        penalty != "gate"
        or gate != "none"
        or "a gate for penalty 'gate'. Write penalty='write' or 'none'"
    )
)
@must(lambda n_prompts, batch: n_prompts >= batch or "one batch of prompts or more")
@dataclass(frozen=True)
class Recipe:
    """A gated block and how it is trained; it never changes, so that a table row can say exactly what was run.

    Defaults are those of the post (batches of 1,000 prompts, 100,000 steps). **Source**: "Gated Attention Blocks" and its
    public configuration.
    """

    # the block
    expansion: Count = 2
    """Heads of the block for each head of the original."""
    d_head: Count = 1
    d_value: Count | None = None
    """Rank of what a head writes; `d_head` if left out."""
    share: Count = 1
    """Heads in a row that share one query-key circuit."""
    top_k: Count | None = None
    """Lorsa: activations below zero count as zero, and at each position only the heads with the `top_k` longest writes write."""
    top_k_warmup: Fraction = 0.0
    """The number of heads that write falls evenly from all to `top_k` during this share of the steps."""
    d_gate: Count = 1
    gate: Literal["clamp", "none", "relu", "relu_tanh", "binary", "binary_ste"] = "clamp"
    """`clamp` to [0, 1]; `none` is 1 everywhere; the post's appendix C: `relu`, `relu_tanh`, `binary` (1 where the
    sigmoid of the score is at least 0.5; no gradient), `binary_ste` (the same with the sigmoid's gradient)."""
    value_bias: Literal["free", "none"] = "free"
    """`free`: trained and not normalised (the post: the loophole). `none`: absent."""
    normalise: bool = True
    """W_V and W_O have unit length along d_model at every step."""
    output_scale: Literal["none", "fixed", "learned"] = "none"
    """Multiplies the outputs: `none` is 1, `fixed` is e times the root mean square length of the target, `learned`
    starts there and is trained."""
    init: Literal["xavier", "duplicate", "pca", "axes"] = "xavier"
    """`duplicate` (appendix C): the original's weights for every copy; with `d_value` its queries and keys only. `pca`: these,
    and both directions of the principal axes of what each head of a recorded layer writes; the mean is an output bias.
    `axes`: the same along random axes, its control."""
    noise: NonNegative = 1.0
    """Xavier noise on copied weights, as a multiple."""
    # the loss
    error: Literal["mse", "variance"] = "mse"
    """`mse`: mean over elements. `variance`: squared error over the target's mean square, so that alpha has no unit."""
    penalty: Literal["gate", "write", "write_norm", "none"] = "gate"
    """`gate`: on open gates of a pair. `write`: on what heads write to each logit (d_head 1). `write_norm`: on the
    length of what each head writes at a position. `none`."""
    power: Power = 0.6
    pairs: Literal["all", "causal"] = "all"
    """Which query-key pairs the gate penalty averages over: `all` (the post, non-causal ones included) or `causal`."""
    alpha: NonNegative = 0.3
    # the schedule, in shares of all steps
    alpha_warmup: Fraction = 0.0
    """alpha grows as (t / alpha_warmup)^2 during this share of the steps."""
    alpha_tail: Fraction = 0.0
    """In this last share of the steps alpha is multiplied by `tail_factor`."""
    tail_factor: Fraction = 0.1
    lr: Positive = 1e-3
    lr_warmup: Fraction = 0.0
    cosine: bool = False
    """The learning rate falls to 0 along a half cosine; otherwise it stays."""
    steps: Count = 100_000
    batch: Count = 1000
    """Prompts in one step."""
    n_prompts: Count = 100_000
    """Prompts in the training set, used again and again in the same order."""

    def but(self, **changes: Any) -> "Recipe":
        """The same recipe with some fields changed."""
        known = {f.name for f in fields(self)}
        if unknown := sorted(set(changes) - known):
            raise ValueError(f"a recipe has no field {unknown}; it has {sorted(known)}")
        return replace(self, **changes)

    def alpha_at(self, step: Natural) -> float:
        """The penalty's weight at a step (0 .. steps - 1)."""
        t = step / self.steps
        if self.alpha_tail and t >= 1 - self.alpha_tail:
            return self.alpha * self.tail_factor
        return (
            self.alpha * min(1.0, t / self.alpha_warmup) ** 2 if self.alpha_warmup else self.alpha
        )

    def top_k_at(self, step: Natural, n_heads: Count) -> int:
        """How many of `n_heads` heads may write at a step."""
        least = min(self.top_k or n_heads, n_heads)
        left = max(0.0, 1 - step / self.steps / self.top_k_warmup) if self.top_k_warmup else 0.0
        return least + round(left * (n_heads - least))

    def lr_at(self, step: Natural) -> float:
        """The learning rate at a step."""
        from math import cos, pi

        t = (step + 1) / self.steps
        if t <= self.lr_warmup:
            return self.lr * t / self.lr_warmup
        if not self.cosine:
            return self.lr
        return self.lr * 0.5 * (1 + cos(pi * (t - self.lr_warmup) / max(1 - self.lr_warmup, 1e-9)))


@public
@must(lambda n_heads: n_heads in (2, 3, 4) or "2, 3 or 4: the post has models of so many heads")
def post_recipe(n_heads: Count) -> Recipe:
    """The post's settings for its three models: 2 heads (appendix B1), 3 heads (B2), 4 heads (main text).

    **Source**: "Gated Attention Blocks", experiments and appendix B, and its public configuration.
    """
    settings = {2: (0.5, 5e-4), 3: (0.1, 5e-4), 4: (0.3, 1e-3)}
    alpha, lr = settings[n_heads]
    return Recipe(alpha=alpha, lr=lr)


_FAST = Recipe(
    expansion=3, value_bias="none", error="variance", pairs="causal", alpha_warmup=0.7, alpha_tail=0.2,
    lr=3e-2, lr_warmup=0.02, cosine=True, steps=1000, batch=50, n_prompts=10_000,
)  # fmt: skip

GATES = _FAST.but(penalty="gate", output_scale="fixed", alpha=2.0)
"""The post's idea with every scale loophole closed: few open gates, fixed output scale, no value bias."""

WRITES = _FAST.but(penalty="write", normalise=False, alpha=0.3)
"""Penalise what heads write instead of their gates. The gate may stay; `WRITES.but(gate="none")` is the control."""

LORSA = _FAST.but(
    gate="none", penalty="none", normalise=False, alpha=0.0, top_k=1, top_k_warmup=0.5
)
"""Low-rank sparse attention (He and others, 2025) on the toy: no gate, no price, one head active at a position."""


PARAMETERS = (
    "W_Q",
    "W_K",
    "W_V",
    "W_O",
    "b_Q",
    "b_K",
    "b_V",
    "W_GQ",
    "W_GK",
    "b_GQ",
    "b_GK",
    "log_scale",
)
EPSILON = 1e-3
"""Rounds off |x|^0.6 at 0, where its slope is infinite."""


@public
@must(
    lambda recipe, original: (
        recipe.init == "xavier"
        or original is not None
        or "original=heads(model), to copy its weights"
    )
)
@must(
    lambda recipe, n_heads: (
        n_heads * recipe.expansion % recipe.share == 0
        or "as many heads as groups that share queries and keys can hold"
    )
)
@reads("W_Q")
class GatedBlock(nn.Module):
    """`out = sum_h (gate_h * pattern_h) (x W_V + b_V) W_O`, gates in [0, 1], patterns not renormalised.

    `gate[dst, src] = clamp((x W_GQ + b_GQ) . (x W_GK + b_GK), 0, 1)`; the pattern is the usual causal softmax. With `recipe.top_k`
    negative activations count as zero and only the longest writes of a position are kept. Weights start Xavier-normal, gate weights
    orthonormal across heads, biases 0; `target_rms` is the root mean square length of a target row, for a fixed or learned output
    scale. **Source**: "Gated Attention Blocks", section "Gated Attention Mechanism"; He and others 2025 for top-k.
    """

    W_Q: nn.Parameter
    W_K: nn.Parameter
    W_V: nn.Parameter
    W_O: nn.Parameter
    b_Q: nn.Parameter
    b_K: nn.Parameter
    b_V: nn.Parameter
    W_GQ: nn.Parameter
    W_GK: nn.Parameter

    def __init__(
        self,
        recipe: Recipe,
        n_heads: Count,
        d_model: Count,
        *,
        target_rms: Positive = 1.0,
        seed: Seed = 0,
        original: Heads | None = None,
        dtype: Trained | None = None,
    ) -> None:
        super().__init__()
        self.recipe, self.n_heads, self.d_model = recipe, n_heads * recipe.expansion, d_model
        self.active = recipe.top_k or self.n_heads
        self.names, self.of = (
            ((), "") if original is None else (original.names, original.of)
        )  # what it stands for
        generator = torch.Generator().manual_seed(seed)
        h, d, r, g = (
            self.n_heads // recipe.share,
            recipe.d_head,
            recipe.d_value or recipe.d_head,
            recipe.d_gate,
        )
        shapes = {
            "W_Q": (h, d_model, d),
            "W_K": (h, d_model, d),
            "W_V": (self.n_heads, d_model, r),
            "W_O": (self.n_heads, r, d_model),
        }
        shapes |= {"b_Q": (h, d), "b_K": (h, d), "b_V": (self.n_heads, r)}
        for name, shape in shapes.items():
            value = torch.empty(shape, dtype=dtype)
            nn.init.xavier_normal_(value, generator=generator)
            if (
                recipe.init != "xavier"
                and original is not None
                and (recipe.d_value is None or name[-1] in "QK")
            ):
                value = recipe.noise * value + _copies(original, name, shape)
            setattr(self, name, nn.Parameter(value))
        for name in ("W_GQ", "W_GK"):
            value = torch.empty(h, d_model, g, dtype=dtype)
            nn.init.orthogonal_(value, generator=generator)
            setattr(self, name, nn.Parameter(value))
        self.b_GQ, self.b_GK = (nn.Parameter(torch.zeros(h, g, dtype=dtype)) for _ in range(2))
        self.b_O = (
            nn.Parameter(torch.zeros(d_model, dtype=dtype))
            if recipe.init in ("pca", "axes")
            else None
        )
        self.log_scale = nn.Parameter(torch.tensor(1.0 + math.log(target_rms), dtype=dtype))
        if recipe.value_bias == "none":
            nn.init.zeros_(self.b_V)
        for name in untrained(recipe):
            getattr(self, name).requires_grad_(False)

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """`(W_V, b_V, W_O)` as used: normalised and scaled."""
        return effective(self.recipe, {name: getattr(self, name) for name in PARAMETERS})

    def gates(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos pos"]:
        """Gate of every destination and source, `[..., head, dst, src]`, non-causal pairs included."""
        q = torch.einsum("...pm,hmg->...hpg", x, self.W_GQ) + self.b_GQ[:, None]
        k = torch.einsum("...pm,hmg->...hpg", x, self.W_GK) + self.b_GK[:, None]
        return activation(self.recipe.gate, q @ k.transpose(-2, -1))

    def pattern(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos pos"]:
        """The attention pattern before gating; rows sum to 1."""
        q = torch.einsum("...pm,hmd->...hpd", x, self.W_Q) + self.b_Q[:, None]
        k = torch.einsum("...pm,hmd->...hpd", x, self.W_K) + self.b_K[:, None]
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.recipe.d_head)
        return scores.masked_fill(
            ~allowed_pairs("causal", x.shape[-2], x.device), -math.inf
        ).softmax(-1)

    def mixed(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos d_value"]:
        """What each head reads: its gated pattern applied to the values, before W_O, and what top-k leaves of it."""
        W_V, b_V, W_O = self.weights()
        v = torch.einsum("...pm,hmd->...hpd", x, W_V) + b_V[:, None]
        seen, share = self.pattern(x), self.recipe.share
        if self.recipe.gate != "none":
            seen = self.gates(x) * seen
        if share == 1:
            z = seen @ v
        else:  # one product for all heads of a group
            wide = seen @ v.unflatten(-3, (-1, share)).transpose(-3, -2).flatten(-2)
            z = wide.unflatten(-1, (share, -1)).transpose(-3, -2).flatten(-4, -3)
        if self.recipe.top_k is None:
            return z
        return most_active(
            z[..., 0].transpose(-2, -1), W_O[:, 0].norm(dim=-1), self.active
        ).transpose(-2, -1)[..., None]

    def results(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos d_model"]:
        """What each head writes, `[..., head, pos, d_model]`."""
        return self.mixed(x) @ self.weights()[2]

    @must(
        lambda without, self: (
            max(without, default=0) < self.n_heads or f"heads of the block, 0 to {self.n_heads - 1}"
        )
    )
    def forward(
        self, x: Float[Tensor, "*batch pos d_model"], without: tuple[Natural, ...] = ()
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The block's output; `without` names heads that are left out of it."""
        z = self.mixed(x)
        if without:
            z = z.index_fill(-3, torch.tensor(without, device=z.device), 0)
        out = torch.einsum("...hpd,hdm->...pm", z, self.weights()[2])
        return out if self.b_O is None else out + self.b_O

    def penalty(
        self,
        x: Float[Tensor, "batch pos d_model"],
        target_l1: Positive = 1.0,
        target_rms: Positive = 1.0,
    ) -> Tensor:
        """The recipe's sparsity penalty on a batch, without alpha. See `gate_penalty` and `write_penalty`."""
        recipe = self.recipe
        if recipe.penalty == "gate":
            joint = across_heads(self.gates(x), recipe.power, axis=-3)
            if recipe.pairs == "all":
                return joint.mean()
            return joint[..., allowed_pairs("causal", x.shape[-2], x.device)].mean()
        if recipe.penalty == "write":
            z = self.mixed(x)[..., 0].transpose(-2, -1)  # [batch, pos, head]
            return write_penalty(z, self.weights()[2][:, 0], recipe.power).mean() / target_l1
        if recipe.penalty == "write_norm":
            length = (self.results(x).square().sum(-1) + EPSILON**2).sqrt()
            return across_heads(length, recipe.power, axis=-2).mean() / target_rms
        return x.new_zeros(())

    @property
    def heads(self) -> Heads:
        """The heads without their gates, as ordinary `Heads`."""
        W_V, b_V, W_O = (part.detach() for part in self.weights())
        names = tuple(f"L0H{h}" for h in range(self.n_heads))
        rest = {
            name: getattr(self, name).detach().repeat_interleave(self.recipe.share, 0)
            for name in ("W_Q", "W_K", "b_Q", "b_K")
        }
        return Heads(names, W_V=W_V, W_O=W_O, b_V=b_V, scale=math.sqrt(self.recipe.d_head), **rest)


def untrained(recipe: Recipe) -> list[str]:
    """Names of the parameters that this recipe does not train."""
    out = [] if recipe.output_scale == "learned" else ["log_scale"]
    out += ["b_V"] if recipe.value_bias == "none" else []
    return out + (["W_GQ", "W_GK", "b_GQ", "b_GK"] if recipe.gate in ("none", "binary") else [])


def optimise(
    recipe: Recipe,
    p: dict[str, Tensor],
    loss: Callable[[int], Tensor],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Adam on the sum of the runs' losses; runs share no parameter, so each is trained as if alone."""
    trained = [value for value in p.values() if value.requires_grad]
    adam = torch.optim.Adam(trained, lr=recipe.lr, fused=True)
    for step in _bar(range(recipe.steps), "training", recipe.steps):
        adam.param_groups[0]["lr"] = recipe.lr_at(step)
        adam.zero_grad(set_to_none=True)
        with trusted():
            total = loss(step).sum()
        total.backward()
        adam.step()
        if progress and (step % 50 == 49 or step + 1 == recipe.steps):
            progress(step + 1, recipe.steps)


def effective(recipe: Recipe, p: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """`(W_V, b_V, W_O)` normalised along d_model and scaled, for parameters with any leading axes."""
    W_V, b_V, W_O = p["W_V"], p["b_V"], p["W_O"]
    if recipe.normalise:
        W_V = W_V / W_V.square().sum(-2, keepdim=True).sqrt()
        W_O = W_O / W_O.square().sum(-1, keepdim=True).sqrt()
    if recipe.output_scale != "none":
        W_O = W_O * p["log_scale"].exp()[..., None, None, None]
    return W_V, b_V, W_O


def activation(kind: str, score: Tensor) -> Tensor:
    """Gate scores to gates; `kind` is a recipe's `gate`."""
    if kind == "clamp":
        return score.clamp(0, 1)
    if kind == "none":
        return torch.ones_like(score)
    if kind == "relu":
        return score.clamp(min=0)
    if kind == "relu_tanh":
        return score.clamp(min=0).tanh()
    soft = score.sigmoid()
    hard = (soft >= 0.5).to(score.dtype)
    return hard if kind == "binary" else hard.detach() + soft - soft.detach()


def across_heads(x: Tensor, power: float, axis: int) -> Tensor:
    """`(sum_h x_h^p)^(1/p)` for x >= 0, with gradient 0 at exactly 0 (as torch's own p-norms have it)."""
    positive = x > 0
    total = torch.where(positive, torch.where(positive, x, 1.0).pow(power), 0.0).sum(axis)
    some = total > 0
    return torch.where(some, torch.where(some, total, 1.0).pow(1 / power), 0.0)


def write_penalty(
    z: Float[Tensor, "*row head"], W_O: Float[Tensor, "*run head d_model"], power: float
) -> Tensor:
    """`sum_u ( sum_h (|z_h| + e)^p (|W_O[h, u]| + e)^p )^(1/p)` for heads with d_head 1, one number a row, e = 0.001.

    Over the target's mean 1-norm it is 1 when every logit of a row is written by one head; heads that share or cancel make it
    larger.
    """
    joint = (z.abs() + EPSILON).pow(power) @ (W_O.abs() + EPSILON).pow(power)
    return joint.pow(1 / power).sum(-1)


def most_active(
    z: Float[Tensor, "*row head"], length: Float[Tensor, "*#row head"], k: int
) -> Float[Tensor, "*row head"]:
    """Activations below zero become zero, and so do all but the `k` whose write `z * length` is longest. **Error**: none."""
    z = z.clamp(min=0)
    if k >= z.shape[-1]:
        return z
    written = z * length
    return torch.where(written >= written.topk(k, -1).values[..., -1:], z, 0.0)


def _copies(original: Heads, name: str, shape: tuple[int, ...]) -> Tensor:
    value = getattr(original, name)
    value = torch.zeros(len(original), original.d_head) if value is None else value
    copies = value.repeat(shape[0] // len(original), *[1] * (value.ndim - 1))
    if tuple(copies.shape) != shape:
        raise ValueError(
            f"init='duplicate': {name} of the original gives {tuple(copies.shape)}, the block needs {shape}"
        )
    return copies
