"""Everything that can be chosen about a gated block and its training, with the post's choices as the defaults."""

from dataclasses import dataclass, fields, replace
from typing import Any

CHOICES = {
    "value_bias": ("free", "none", "unit"),
    "output_scale": ("none", "fixed", "learned"),
    "gate": ("clamp", "none", "relu", "relu_tanh", "binary", "binary_ste"),
    "init": ("xavier", "duplicate"),
    "penalty": ("gate", "write", "write_norm", "none"),
    "pairs": ("all", "causal"),
    "error": ("mse", "variance"),
}


@dataclass(frozen=True)
class Recipe:
    """A gated block and how it is trained; frozen, so that a table row can say exactly what was run.

    Defaults are the form of "Gated Attention Blocks" (post and configuration, batch of 1,000 prompts, 100,000 steps).

    **Source**: "Gated Attention Blocks" and its public configuration, for the defaults; each field says what it
    changes.
    """

    # the block
    expansion: int = 2
    """Heads of the block for each head of the original."""
    d_head: int = 1
    d_gate: int = 1
    gate: str = "clamp"
    """`clamp` to [0, 1]; `none` is 1 everywhere; the post's appendix C: `relu`, `relu_tanh`, `binary` (1 where the
    sigmoid of the score is at least 0.5; no gradient), `binary_ste` (the same with the sigmoid's gradient)."""
    value_bias: str = "free"
    """`free`: trained and not normalised (the post: the loophole). `none`: absent. `unit`: normalised with W_V as one
    more row of it."""
    normalise: bool = True
    """W_V and W_O have unit length along d_model at every step."""
    output_scale: str = "none"
    """Multiplies the outputs: `none` is 1, `fixed` is e times the root mean square length of the target, `learned`
    starts there and is trained."""
    init: str = "xavier"
    """`duplicate` (appendix C): the original's weights for every copy, plus Xavier noise."""
    # the loss
    error: str = "mse"
    """`mse`: mean over elements. `variance`: squared error over the target's mean square, so that alpha has no unit."""
    penalty: str = "gate"
    """`gate`: on open gates of a pair. `write`: on what heads write to each logit (d_head 1). `write_norm`: on the
    length of what each head writes at a position. `none`."""
    power: float = 0.6
    pairs: str = "all"
    """Which query-key pairs the gate penalty averages over: `all` (the post, non-causal ones included) or `causal`."""
    alpha: float = 0.3
    # the schedule, in shares of all steps
    alpha_warmup: float = 0.0
    """alpha grows as (t / alpha_warmup)^2 during this share of the steps."""
    alpha_tail: float = 0.0
    """In this last share of the steps alpha is multiplied by `tail_factor`."""
    tail_factor: float = 0.1
    lr: float = 1e-3
    lr_warmup: float = 0.0
    cosine: bool = False
    """The learning rate falls to 0 along a half cosine; otherwise it stays."""
    steps: int = 100_000
    batch: int = 1000
    """Prompts in one step."""
    n_prompts: int = 100_000
    """Prompts in the training set, used again and again in the same order."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {getattr(self, name)!r}; expected one of {list(allowed)}"
            for name, allowed in CHOICES.items()
            if getattr(self, name) not in allowed
        ]
        for name in ("expansion", "d_head", "d_gate", "steps", "batch", "n_prompts"):
            if getattr(self, name) < 1:
                problems.append(f"{name} is {getattr(self, name)}; expected 1 or more")
        if not self.alpha >= 0:
            problems.append(f"alpha is {self.alpha}; a negative penalty would reward shared gates. Write 0 or more")
        if not self.lr > 0:
            problems.append(f"lr is {self.lr}; expected a positive learning rate")
        if not 0 < self.power <= 2:
            problems.append(f"power is {self.power}; expected above 0 and at most 2 (the post uses 0.6)")
        for name in ("alpha_warmup", "alpha_tail", "lr_warmup"):
            if not 0 <= getattr(self, name) <= 1:
                problems.append(f"{name} is {getattr(self, name)}; expected a share of the steps, 0 to 1")
        if self.penalty == "write" and self.d_head != 1:
            problems.append(f"penalty 'write' needs d_head 1, here it is {self.d_head}. Write penalty='write_norm'")
        if self.penalty == "gate" and self.gate == "none":
            problems.append("penalty 'gate' needs a gate, and gate is 'none'. Write penalty='write' or 'none'")
        if self.n_prompts < self.batch:
            problems.append(f"n_prompts {self.n_prompts} is less than one batch of {self.batch}")
        if problems:
            raise ValueError("this recipe cannot be used:\n  " + "\n  ".join(problems))

    def but(self, **changes: Any) -> "Recipe":
        """The same recipe with some fields changed."""
        known = {f.name for f in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(f"a recipe has no field {unknown}; it has {sorted(known)}")
        return replace(self, **changes)

    def alpha_at(self, step: int) -> float:
        """The penalty's weight at a step (0 .. steps - 1)."""
        t = step / self.steps
        if self.alpha_tail and t >= 1 - self.alpha_tail:
            return self.alpha * self.tail_factor
        return self.alpha * min(1.0, t / self.alpha_warmup) ** 2 if self.alpha_warmup else self.alpha

    def lr_at(self, step: int) -> float:
        """The learning rate at a step."""
        from math import cos, pi

        t = (step + 1) / self.steps
        if t <= self.lr_warmup:
            return self.lr * t / self.lr_warmup
        if not self.cosine:
            return self.lr
        return self.lr * 0.5 * (1 + cos(pi * (t - self.lr_warmup) / max(1 - self.lr_warmup, 1e-9)))


def post_recipe(n_heads: int) -> Recipe:
    """The post's settings for its three models: 2 heads (appendix B1), 3 heads (B2), 4 heads (main text).

    **Source**: "Gated Attention Blocks", experiments and appendix B, and its public configuration.
    """
    settings = {2: (0.5, 5e-4), 3: (0.1, 5e-4), 4: (0.3, 1e-3)}
    if n_heads not in settings:
        raise ValueError(f"the post has models of 2, 3 and 4 heads; {n_heads} heads were asked for")
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
