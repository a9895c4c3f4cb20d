"""The post's constructions: no mask but a large number Omega in the weights, and one-hot positions to hang it on."""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Count, Positive, Real, Share, must, one_dtype, public, reads
from circuitkit._precision import finest


class OmegaWarning(UserWarning):
    """Omega lies outside the window where leak and rounding are both small.

    The window is `omega_window`'s. **Source**: this book.
    """


@public
def omega_window(n_pos: Count, dtype: Real, tolerance: Share | None = None) -> tuple[float, float]:
    """The Omegas that keep leak and rounding within `tolerance` for unit-size activations.

    Leak: each of `n_pos - 1` other tokens keeps weight `exp(-2 Omega)`, so `Omega >= ln(n_pos / tolerance) / 2`. Rounding:
    scores near `2 Omega` are known to half a unit in the last place, which moves the sigmoid by a quarter of that, so `Omega
    <= 4 tolerance / eps`. `tolerance=None` takes 16 units of rounding of the dtype. **Source**: this book, from the post's
    two conditions, the first of which asks twice as much as needed.
    """
    eps = torch.finfo(dtype).eps
    tolerance = 16 * eps if tolerance is None else tolerance
    return 0.5 * math.log(n_pos / tolerance), min(4 * tolerance / eps, torch.finfo(dtype).max / 4)


@public
def choose_omega(n_pos: Count, dtype: Real, tolerance: Share | None = None) -> float:
    """The smallest useful Omega, `ln(n_pos / tolerance) / 2`: past it only rounding grows. **Source**: this book; the post
    takes 1000.

    >>> round(choose_omega(20, torch.float64), 1)
    18.1
    """
    low, high = omega_window(n_pos, dtype, tolerance)
    if low > high:
        why = f"leak asks for omega >= {low:.3g}, rounding for omega <= {high:.3g}; use a wider dtype or a larger tolerance"
        raise ValueError(
            f"no omega gives tolerance {tolerance:g} in {dtype} with {n_pos} positions: {why}"
        )
    return low


_as_wide = lambda x, self: (
    (x.shape[-1], x.dtype) == (self.d_stream, self.W_in.dtype)
    or f"[..., {self.d_stream}] in {self.W_in.dtype}"
)


_long = "positions, because each has its own coordinate; build it again with a larger n_ctx"


@public
@reads("W_in")
@must(_as_wide, "stream", "self")
@must(_as_wide, "read", "self")
@must(lambda x, self: x.shape[-2] <= self.n_ctx or f"at most {self.n_ctx} {_long}")
@dataclass(frozen=True, eq=False)
class OmegaMLP:
    """An MLP as softmax attention without any mask. Call it on `X[..., N, D]`; it returns what the MLP adds to `X`.

    `activation(X W_in + b_in) W_out + b_out`, up to `.error_bound(X)`. **Source**: see `omega_mlp`.
    """

    W_in: Float[Tensor, "d_model d_mlp"]
    W_out: Float[Tensor, "d_mlp d_model"]
    b_in: Float[Tensor, " d_mlp"] | None
    b_out: Float[Tensor, " d_model"] | None
    n_ctx: int
    omega: float
    form: str
    """`"three_layers"` (January 2023) or `"one_layer"` (the "more efficient implementation")."""

    @property
    def d_stream(self) -> int:
        """`D' = D + d_mlp + (N+1)`, or `D + (N+1)` for the single sublayer."""
        d_model, d_mlp = self.W_in.shape
        return d_model + (d_mlp if self.form == "three_layers" else 0) + self.n_ctx + 1

    @property
    def n_heads(self) -> int:
        """Attention heads in all: two linear steps and `d_mlp` entrywise ones, or `d_mlp`; one more for `b_out`."""
        extra = int(self.b_out is not None)
        return self.W_in.shape[1] + (2 if self.form == "three_layers" else extra)

    @torch.no_grad()
    def error_bound(self, x: Float[Tensor, "*batch pos d_model"]) -> float:
        """Bound on any output entry for this input, leak and rounding of every step; infinite where a number overflows.

        With u and v half a unit in the last place of the dtype and of its sums (float32 for half types), a sum of n numbers is
        wrong by n v times the sum of their sizes `P = |x| |W_in| + |b_in|`, in whatever order it is made, and what is stored by
        u times itself: scores and means twice, weights twice, the product with W_out, made for all heads at once, once. Other
        tokens have together the weight `leak <= N exp(-2 Omega)`; a score that is wrong by dq moves a sigmoid by at most dq
        times its largest slope on the way. SiLU passes an error on at most 1.1 times. **Error**: assumes sums in float32 or wider.
        """
        u, (n_pos, d_model), d_mlp = torch.finfo(x.dtype).eps / 2, x.shape[-2:], self.W_in.shape[1]
        low, top = (
            torch.finfo(x.dtype).tiny * (2 * u if x.dtype == torch.float16 else 1),
            torch.finfo(x.dtype).max,
        )
        v = min(u, torch.finfo(torch.float32).eps / 2)
        own = float(x.new_tensor(2 * self.omega))  # as the weights hold it
        leak, three = min(1.0, n_pos * math.exp(-own)), self.form == "three_layers"
        x, W_in, W_out = finest(x), finest(self.W_in), finest(self.W_out)
        b_in, b_out = (
            W.new_zeros(W.shape[1]) if b is None else finest(b)
            for W, b in ((W_in, self.b_in), (W_out, self.b_out))
        )

        def g(n: int, stored: int = 4) -> float:
            off = n * v + stored * u
            return off / (1 - off) if off < 1 else math.inf

        softmax, mixed = (
            n_pos + 9,
            2 * n_pos + 14,
        )  # roundings of a weight, and of a mean over tokens
        reads, size = x @ W_in + b_in, x.abs() @ W_in.abs() + b_in.abs()
        pre, exact = reads.abs(), F.silu(reads)
        most = size.amax(-2, keepdim=True)  # what a token that leaks in can bring
        read = torch.zeros_like(
            size
        )  # how wrong the scratch space is when the entrywise step reads it
        if three:
            read = leak * (size + most) + g(mixed + d_model + n_pos) * (size + leak * most) + low
            size, most = pre + read, (pre + read).amax(-2, keepdim=True) + leak * most
        moved = (
            g(2 if three else d_model + 3, 0) * (size + own)
            + g(0, 1) * (pre + read + b_in.abs() + 2 * own)
            + low
        )  # scores
        near = (pre - read - moved).clamp_min(0)
        itself = torch.ones_like(size) if three else torch.sigmoid(reads + moved)
        others = (leak * (2 * moved).exp()).clamp_max(1)
        weight = (moved * torch.sigmoid(near) * torch.sigmoid(-near)).clamp_max(1) + g(
            softmax, 2
        ) * itself
        act = (
            weight * (pre + read)
            + others * (size + most)
            + 1.1 * read
            + low * (2 + W_in.abs().sum(0))
        )
        act = act + (1 + g(softmax, 2)) * g(mixed + d_model + n_pos, 2) * (
            itself * size + most * others
        )
        if three:
            act = act + leak * most + u * (size + act)
        hidden, passed = exact.abs() + act, act @ W_out.abs()
        out, total = (exact @ W_out).abs(), hidden @ W_out.abs() + b_out.abs()
        if three:
            worst = (hidden.amax(-2, keepdim=True) + most) @ W_out.abs() + b_out.abs()
            passed = (
                passed + leak * (total + worst) + g(mixed + d_mlp + n_pos) * (total + leak * worst)
            )
        else:
            passed = (
                passed + g(d_mlp + 3, 0) * total + u * out + (leak + g(mixed + n_pos)) * b_out.abs()
            )
        passed = passed + 1.01 * u * (x.abs() + 3 * (out + b_out.abs()) + 4 * passed) + d_mlp * low
        passed = torch.where(
            torch.maximum(F.pad(size, (0, 1)).amax() + own, total.amax()) > top, math.inf, passed
        )
        return float(passed.nan_to_num(nan=math.inf, posinf=math.inf).max())

    def __call__(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch pos d_model"]:
        if x.ndim > 2:
            return torch.stack([self(row) for row in x])
        stream = self.augment(x)
        return (self.run(stream) - stream)[: len(x), : x.shape[-1]]

    def run(
        self, stream: Float[Tensor, "pos_and_bias d_stream"]
    ) -> Float[Tensor, "pos_and_bias d_stream"]:
        """The attention layers alone, on a stream as `augment` makes it or as something has since changed it."""
        return (
            self._three_layers(stream) if self.form == "three_layers" else self._one_layer(stream)
        )

    def augment(self, x: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos_and_bias d_stream"]:
        """The post's stream: a bias row last, scratch space of zeros, one-hot positions (the last is the bias's)."""
        n_pos, d_model = x.shape
        stream = x.new_zeros(n_pos + 1, self.d_stream)
        stream[:-1, :d_model] = x
        first = self.d_stream - self.n_ctx - 1
        stream[torch.arange(n_pos), first + torch.arange(n_pos)] = 1
        stream[-1, -1] = 1
        return stream

    def self_matrix(self) -> Float[Tensor, "d_stream d_stream"]:
        """`W_QK` of a linear step: `2 Omega` between equal positions, so every token looks at itself."""
        W_QK = self.W_in.new_zeros(self.d_stream, self.d_stream)
        places = range(self.d_stream - self.n_ctx - 1, self.d_stream)
        W_QK[places, places] = 2 * self.omega
        return W_QK

    def entry_matrix(self, read: Float[Tensor, " d_stream"]) -> Float[Tensor, "d_stream d_stream"]:
        """`W_QK` of an entrywise step: row j scores `-read . x_j` on every token and 0 on the bias, plus `2 Omega` on j and on the bias."""
        W_QK, first = self.self_matrix(), self.d_stream - self.n_ctx - 1
        W_QK[first:-1, -1] = 2 * self.omega
        W_QK[:, first:-1] -= read[:, None]
        return W_QK

    def _read(self, unit: int) -> Float[Tensor, " d_stream"]:
        """What a hidden unit reads: its scratch coordinate, or its column of W_in with the bias on the positions."""
        d_model = self.W_in.shape[0]
        read = self.W_in.new_zeros(self.d_stream)
        if self.form == "three_layers":
            read[d_model + unit] = 1
            return read
        read[:d_model] = self.W_in[:, unit]
        if self.b_in is not None:
            read[d_model:-1] = self.b_in[unit]
        return read

    def _linear(self, stream: Tensor, V: Tensor) -> Tensor:
        return (stream @ self.self_matrix() @ stream.T).softmax(-1) @ stream @ V

    def _three_layers(self, stream: Tensor) -> Tensor:
        d_model, d_mlp = self.W_in.shape
        hidden, ones = slice(d_model, d_model + d_mlp), slice(d_model + d_mlp, self.d_stream - 1)
        V = stream.new_zeros(self.d_stream, self.d_stream)
        V[:d_model, hidden] = self.W_in
        if self.b_in is not None:
            V[ones, hidden] = self.b_in  # the 1s of the position code serve as bias
        stream = stream + self._linear(stream, V)
        total = torch.zeros_like(stream)
        for unit in range(d_mlp):
            read = self._read(unit)
            pattern = (stream @ self.entry_matrix(read) @ stream.T).softmax(-1)
            total = total - torch.outer(
                pattern @ stream @ read, read
            )  # -x (1 - sigmoid(x)): x becomes SiLU(x)
        stream = stream + total
        V = torch.zeros_like(V)
        V[hidden, :d_model] = self.W_out
        V[hidden, hidden] = -torch.eye(
            d_mlp, dtype=V.dtype, device=V.device
        )  # V = W - I clears the scratch space
        if self.b_out is not None:
            V[ones, :d_model] = self.b_out
        return stream + self._linear(stream, V)

    def _one_layer(self, stream: Tensor) -> Tensor:
        d_model, reads = (
            self.W_in.shape[0],
            [self._read(unit) for unit in range(self.W_in.shape[1])],
        )
        gathered = stream.new_zeros(len(stream), len(reads))
        for unit, read in enumerate(reads):  # weight sigmoid(x) on itself
            gathered[:, unit] = (
                (stream @ self.entry_matrix(-read) @ stream.T).softmax(-1) @ stream @ read
            )
        total = F.pad(gathered @ self.W_out, (0, self.d_stream - d_model))
        if self.b_out is not None:
            V = stream.new_zeros(self.d_stream, self.d_stream)
            V[d_model:-1, :d_model] = self.b_out
            total = total + self._linear(stream, V)
        return stream + total


@public
@one_dtype("W_in", "W_out", "b_in", "b_out")
def omega_mlp(
    W_in: Float[Tensor, "d_model d_mlp"],
    W_out: Float[Tensor, "d_mlp d_model"],
    b_in: Float[Tensor, " d_mlp"] | None = None,
    b_out: Float[Tensor, " d_model"] | None = None,
    *,
    n_ctx: Count,
    omega: Positive | None = None,
    tolerance: Share | None = None,
    form: Literal["three_layers", "one_layer"] = "three_layers",
) -> OmegaMLP:
    """The SiLU MLP `SiLU(x W_in + b_in) W_out + b_out` by the post's attention layers, without a mask.

    `omega=None` takes the smallest useful one (`choose_omega`); one outside `omega_window` is used and warned about. Every
    score matrix has rank N+1: the heads are wider than any trained head. Bias rows are served by the ones of the position
    code. **Error**: `.error_bound(x)`. **Source**: "Attention is all you need, no really" (January 2023), which ignores
    masks, norms and biases and writes 1 - sigma(x) for sigma(x) at the bias token.
    """
    if omega is None:
        omega = choose_omega(n_ctx + 1, W_in.dtype, tolerance)
    low, high = omega_window(n_ctx + 1, W_in.dtype, tolerance)
    if not low <= omega <= high:
        why = (
            "other tokens leak into the softmax"
            if omega < low
            else "scores near 2 omega are rounded too coarsely"
        )
        warnings.warn(
            f"omega={omega:g} lies outside [{low:.3g}, {high:.3g}] for {n_ctx} positions in {W_in.dtype}: {why}",
            OmegaWarning,
            stacklevel=2,
        )
    return OmegaMLP(W_in, W_out, b_in, b_out, int(n_ctx), float(omega), form)
