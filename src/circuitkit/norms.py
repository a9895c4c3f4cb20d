"""Norms whose divisor is frozen at the value that it had in a run, so that they are linear."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class FrozenNorm:
    """A LayerNorm or RMSNorm whose divisor is fixed: `(x - mean) / scale * gain + bias`.

    Without `centred`, the mean stays (RMSNorm).
    """

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]
    scale: Float[Tensor, "*batch_pos 1"]
    centred: bool

    @classmethod
    def of(cls, norm: Any, scale: Tensor, like: Tensor) -> "FrozenNorm":
        """Measure gain, bias and centring of a norm module by three probes.

        Zeros give the bias. Ones show whether the norm subtracts the mean, because then they give
        the bias, too. Alternating signs give the gain. The module's own weight is not read, because
        families store it differently (as the gain, or as the gain minus 1).

        Parameters
        ----------
        norm : the module
        scale : its divisor in the run
        like : an input of it, `[batch, pos, d_model]`
        """
        ones = torch.ones_like(like[:1, :1])  # [1, 1, d_model]
        signs = ones.clone()
        signs[..., 1::2] = -1
        bias = norm(torch.zeros_like(ones))
        centred = torch.allclose(norm(ones), bias, atol=1e-2)
        normalized = signs - signs.mean() if centred else signs
        normalized = normalized / normalized.square().mean().sqrt()
        # 1e4: so large that the norm's epsilon does not count
        gain = (norm(1e4 * signs) - bias) / normalized
        return cls(gain[0, 0], bias[0, 0], scale, centred)

    def with_divisor_for(self, norm: Any, x: Float[Tensor, "batch pos d_model"]) -> "FrozenNorm":
        """The same norm, frozen at the divisor that its module has for another input `x`.

        Without its bias, the module returns `undivided / divisor`; the two lengths give the divisor.
        """
        undivided = replace(self, scale=torch.ones_like(self.scale)).apply(x)
        # in half precision, a short length would be 0
        as_in_norm = torch.promote_types(x.dtype, torch.float32)
        before, after = (
            y.to(as_in_norm).norm(dim=-1, keepdim=True) for y in (undivided, norm(x) - self.bias)
        )
        # without the embedding, nothing may be left to divide
        scale = torch.where(before > 0, before / after.clamp_min(1e-30), 1)
        return replace(self, scale=scale)

    def fold(self, W: Float[Tensor, "*row d_model out"]) -> Float[Tensor, "*row d_model out"]:
        """The matrix that reads the stream as `W` reads the norm's output, up to the divisor.

        `apply(x) @ W` is `x @ fold(W) / scale`.
        """
        W = self.gain[:, None] * W
        return W - W.mean(-2, keepdim=True) if self.centred else W

    def apply(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """What the norm makes of one summand of its input; its bias belongs to no summand."""
        dtype = x.dtype
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        # the divisor is in float32 where the model is in half precision
        return (x / self.scale * self.gain).to(dtype)
