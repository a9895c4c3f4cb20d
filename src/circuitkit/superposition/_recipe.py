"""Everything that can be chosen about a gated block and its training, with the post's choices as the defaults."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from circuitkit._contract import Count, Fraction, Natural, NonNegative, Positive, must, number, public

Power = Annotated[float | int, number(0, 2, "a number above 0 and at most 2", "the post uses 0.6", 0.6, above=True)]


@public
@must(lambda penalty, d_head, d_value: penalty != "write" or (d_value or d_head) == 1
     or "d_head=1 for penalty 'write'. Write penalty='write_norm'")
@must(lambda top_k, d_head, d_value: top_k is None or (d_value or d_head) == 1 or "heads that write one direction. Write d_value=1")
@must(lambda init, d_head, d_value: init not in ("pca", "axes") or (d_value or d_head) == 1 or "d_value=1 for a start along axes")
@must(lambda penalty, gate: penalty != "gate" or gate != "none" or "a gate for penalty 'gate'. Write penalty='write' or 'none'")
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
        return self.alpha * min(1.0, t / self.alpha_warmup) ** 2 if self.alpha_warmup else self.alpha

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

LORSA = _FAST.but(gate="none", penalty="none", normalise=False, alpha=0.0, top_k=1, top_k_warmup=0.5)
"""Low-rank sparse attention (He and others, 2025) on the toy: no gate, no price, one head active at a position."""
