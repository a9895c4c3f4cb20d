"""The block that replaces an attention layer: more heads, held apart by gates, by a price on writing, or by top-k."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from circuitkit._contract import Count, Natural, Positive, Seed, Trained, must, public, reads, trusted
from circuitkit._heads import Heads, allowed_pairs
from circuitkit._work import progress as _bar
from circuitkit.superposition._recipe import Recipe

PARAMETERS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "W_GQ", "W_GK", "b_GQ", "b_GK", "log_scale")
EPSILON = 1e-3
"""Rounds off |x|^0.6 at 0, where its slope is infinite."""


@public
@must(lambda recipe, original: recipe.init == "xavier" or original is not None or "original=heads(model), to copy its weights")
@must(lambda recipe, n_heads: n_heads * recipe.expansion % recipe.share == 0 or "as many heads as groups that share queries and keys can hold")
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
        generator = torch.Generator().manual_seed(seed)
        h, d, r, g = self.n_heads // recipe.share, recipe.d_head, recipe.d_value or recipe.d_head, recipe.d_gate
        shapes = {"W_Q": (h, d_model, d), "W_K": (h, d_model, d), "W_V": (self.n_heads, d_model, r), "W_O": (self.n_heads, r, d_model)}
        shapes |= {"b_Q": (h, d), "b_K": (h, d), "b_V": (self.n_heads, r)}
        for name, shape in shapes.items():
            value = torch.empty(shape, dtype=dtype)
            nn.init.xavier_normal_(value, generator=generator)
            if recipe.init != "xavier" and original is not None and (recipe.d_value is None or name[-1] in "QK"):
                value = recipe.noise * value + _copies(original, name, shape)
            setattr(self, name, nn.Parameter(value))
        for name in ("W_GQ", "W_GK"):
            value = torch.empty(h, d_model, g, dtype=dtype)
            nn.init.orthogonal_(value, generator=generator)
            setattr(self, name, nn.Parameter(value))
        self.b_GQ, self.b_GK = (nn.Parameter(torch.zeros(h, g, dtype=dtype)) for _ in range(2))
        self.b_O = nn.Parameter(torch.zeros(d_model, dtype=dtype)) if recipe.init in ("pca", "axes") else None
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

    def pattern(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos pos"]:
        """The attention pattern before gating; rows sum to 1."""
        q = torch.einsum("...pm,hmd->...hpd", x, self.W_Q) + self.b_Q[:, None]
        k = torch.einsum("...pm,hmd->...hpd", x, self.W_K) + self.b_K[:, None]
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.recipe.d_head)
        return scores.masked_fill(~allowed_pairs("causal", x.shape[-2], x.device), -math.inf).softmax(-1)

    def mixed(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos d_value"]:
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
        return most_active(z[..., 0].transpose(-2, -1), W_O[:, 0].norm(dim=-1), self.active).transpose(-2, -1)[..., None]

    def results(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos d_model"]:
        """What each head writes, `[..., head, pos, d_model]`."""
        return self.mixed(x) @ self.weights()[2]

    @must(lambda without, self: max(without, default=0) < self.n_heads or f"heads of the block, 0 to {self.n_heads - 1}")
    def forward(self, x: Float[Tensor, "*batch pos d_model"], without: tuple[Natural, ...] = ()) -> Float[Tensor, "*batch pos d_model"]:
        """The block's output; `without` names heads that are left out of it."""
        z = self.mixed(x)
        if without:
            z = z.index_fill(-3, torch.tensor(without, device=z.device), 0)
        out = torch.einsum("...hpd,hdm->...pm", z, self.weights()[2])
        return out if self.b_O is None else out + self.b_O

    def penalty(self, x: Float[Tensor, "batch pos d_model"], target_l1: Positive = 1.0, target_rms: Positive = 1.0) -> Tensor:
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
        rest = {name: getattr(self, name).detach().repeat_interleave(self.recipe.share, 0) for name in ("W_Q", "W_K", "b_Q", "b_K")}
        return Heads(names, W_V=W_V, W_O=W_O, b_V=b_V, scale=math.sqrt(self.recipe.d_head), **rest)


def untrained(recipe: Recipe) -> list[str]:
    """Names of the parameters that this recipe does not train."""
    out = [] if recipe.output_scale == "learned" else ["log_scale"]
    out += ["b_V"] if recipe.value_bias == "none" else []
    return out + (["W_GQ", "W_GK", "b_GQ", "b_GK"] if recipe.gate in ("none", "binary") else [])


def optimise(
    recipe: Recipe, p: dict[str, Tensor], loss: Callable[[int], Tensor], progress: Callable[[int, int], None] | None = None
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


def write_penalty(z: Float[Tensor, "*row head"], W_O: Float[Tensor, "*run head d_model"], power: float) -> Tensor:
    """`sum_u ( sum_h (|z_h| + e)^p (|W_O[h, u]| + e)^p )^(1/p)` for heads with d_head 1, one number a row, e = 0.001.

    Over the target's mean 1-norm it is 1 when every logit of a row is written by one head; heads that share or cancel make it
    larger.
    """
    joint = (z.abs() + EPSILON).pow(power) @ (W_O.abs() + EPSILON).pow(power)
    return joint.pow(1 / power).sum(-1)


def most_active(z: Float[Tensor, "*row head"], length: Float[Tensor, "*#row head"], k: int) -> Float[Tensor, "*row head"]:
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
        raise ValueError(f"init='duplicate': {name} of the original gives {tuple(copies.shape)}, the block needs {shape}")
    return copies
