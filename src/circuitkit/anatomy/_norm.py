"""One norm: before or after a sublayer, of queries and keys, before the unembedding. Frozen it is affine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import AS_IT_IS, Natural, NonNegative, must, public


@public
@must(lambda x, self: (self.gain is None or x.shape[-1] == self.gain.shape[-1]) and (self.scale is None or all(n == m or m == 1
     for n, m in zip(x.shape[-2::-1], self.scale.shape[-2::-1], strict=False))) or "rows as long as the gain, those it was frozen on")
@must(lambda W, self: self.gain is None or W.shape[-2] == self.gain.shape[-1] or f"{self.gain.shape[-1]} rows, as the gain")
@dataclass(frozen=True, eq=False)
class Norm:
    """`x -> (x - mean) / scale * gain + bias` with `scale = sqrt(mean((x - mean)^2) + eps)`: LayerNorm or RMSNorm.

    **Error**: rounding. **Source**: Ba, Kiros and Hinton 2016; Zhang and Sennrich 2019 (without the mean).
    """

    gain: Float[Tensor, "*size"] | None
    bias: Float[Tensor, "*size"] | None = None
    eps: NonNegative = 1e-5
    centre: bool = True
    """Whether the mean is taken out: a LayerNorm does, an RMSNorm does not."""
    across: bool = False
    """Over all heads together (Olmo 2), for norms of queries and keys `[head, pos, d_head]`."""
    scale: Any = None
    """The divisor of each row once the norm is frozen, `[..., 1]`."""

    def _centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centre else x

    def freeze(self, x: Annotated[Float[Tensor, "*row size"], AS_IT_IS]) -> "Norm":
        """The norm with its divisor fixed at the value it has on `x`: from here on it is affine."""
        if self.across and self.gain is not None and self.gain.shape[0] != x.shape[-3]:
            raise ValueError(
                f"a norm over {self.gain.shape[0]} heads together got {x.shape[-3]}; expected all heads of the layer, because "
                "each one's divisor depends on the others. Take them together."
            )
        square = self._centred(x).square().mean((-3, -1) if self.across else -1, keepdim=True)
        return replace(self, scale=(square + self.eps).sqrt())

    def linear(self, x: Annotated[Float[Tensor, "*row size"], AS_IT_IS]) -> Float[Tensor, "*row size"]:
        """What a frozen norm does to a share of the stream: everything but its bias."""
        out = self._centred(x) / self.scale
        return out if self.gain is None else out * self.gain

    def __call__(self, x: Annotated[Float[Tensor, "*row size"], AS_IT_IS]) -> Float[Tensor, "*row size"]:
        out = (self if self.scale is not None else self.freeze(x)).linear(x)
        return out if self.bias is None else out + self.bias

    def fold(self, W: Float[Tensor, "*row size out"]) -> Float[Tensor, "*row size out"]:
        """The matrix that reads the stream as `W` reads the norm's output, up to the divisor: `(I - 1/d) diag(gain) W`."""
        W = W if self.gain is None else self.gain[:, None] * W
        return W - W.mean(-2, keepdim=True) if self.centre else W

    def bound(self, W: Float[Tensor, "size out"], b: Float[Tensor, " out"] | None = None) -> Float[Tensor, " out"]:
        """The largest `|norm(x) W + b|` that any input can cause: a normed row is at most `sqrt(size)` long."""
        shift = 0.0 if self.bias is None else self.bias @ W
        shift = shift if b is None else shift + b
        return math.sqrt(W.shape[0]) * self.fold(W).norm(dim=0) + abs(shift)

    def at(self, *index: Any) -> "Norm":
        """The frozen norm of some rows."""
        return replace(self, scale=self.scale[index])

    def only(self, head: Natural) -> "Norm":
        """The frozen norm of one head, on its own."""
        pick = lambda value: None if value is None else value[[head if len(value) > 1 else 0]]  # noqa: E731
        return replace(self, across=False, gain=pick(self.gain), bias=pick(self.bias), scale=pick(self.scale))

    def take(self, rows: Any) -> "Norm":
        """The norm of some heads; one over all heads together is kept whole."""
        return self if self.across else self.each(lambda value: value[rows])

    def to(self, *args: Any, **kwargs: Any) -> "Norm":
        return self.each(lambda value: value.to(*args, **kwargs))

    def join(self, norms: "Sequence[Norm]") -> "Norm":
        """Norms of the heads of several layers as one."""
        if any(norm.across for norm in norms) or len({(norm.eps, norm.centre, norm.bias is None) for norm in norms}) > 1:
            raise ValueError("cannot stack heads whose norms of queries or keys are of different kinds; keep them apart")
        every = lambda name: None if getattr(self, name) is None else torch.cat([getattr(norm, name) for norm in norms])  # noqa: E731
        return replace(self, gain=every("gain"), bias=every("bias"))

    def each(self, move: Any) -> "Norm":
        """The norm whose gain and bias went through a function."""
        gain, bias = (None if value is None else move(value) for value in (self.gain, self.bias))
        return replace(self, gain=gain, bias=bias)
