"""The post's constructions: no mask, but a large number Omega in the weights, and one-hot positions.

A stream has the columns `[x | scratch space | positions]` and a bias token in its last row. Equal
positions score 2 Omega, so that a token attends to itself, and to the bias token where a head
wants that. Other tokens keep a weight of `exp(-2 Omega)`.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from circuitkit.checks import checked, require_at_least

__all__ = ["OmegaMLP", "omega_mlp", "omega_window"]


@checked
def omega_window(
    n_pos: int, dtype: torch.dtype, tolerance: float | None = None
) -> tuple[float, float]:
    """The smallest and the largest Omega that keep leak and rounding within a tolerance.

    Each of `n_pos - 1` other tokens keeps the weight `exp(-2 Omega)`, so
    `Omega >= ln(n_pos / tolerance) / 2`. Scores near 2 Omega are known to half a unit in the last
    place, which moves a sigmoid by a quarter of that, so `Omega <= 4 tolerance / eps`.

    Parameters
    ----------
    n_pos : how many positions there are, the bias token included
    dtype : of the computation
    tolerance : for activations of size 1; by default 16 units of rounding

    Notes
    -----
    Source: this book, from the post's two conditions, of which the first asks for twice as much.
    """
    require_at_least(1, n_pos=n_pos)
    eps = torch.finfo(dtype).eps
    tolerance = 16 * eps if tolerance is None else tolerance
    return 0.5 * math.log(n_pos / tolerance), min(4 * tolerance / eps, torch.finfo(dtype).max / 4)


@dataclass(frozen=True, eq=False)
class OmegaMLP:
    """A SiLU MLP as softmax attention without a mask. Call it on X; it returns what the MLP adds.

    Parameters
    ----------
    W_in, W_out, b_in, b_out : the weights of the MLP
    n_ctx : at most how many tokens it takes, because each position has a coordinate
    omega : the large number
    form : `"three_layers"` (January 2023) or `"one_layer"` (the "more efficient implementation")

    Notes
    -----
    Error: leak and rounding; see `omega_window`. Source: see `omega_mlp`.
    """

    W_in: Float[Tensor, "d_model d_mlp"]
    W_out: Float[Tensor, "d_mlp d_model"]
    b_in: Float[Tensor, " d_mlp"] | None
    b_out: Float[Tensor, " d_model"] | None
    n_ctx: int
    omega: float
    form: str

    @property
    def d_stream(self) -> int:
        """`D + d_mlp + (N + 1)`, or `D + (N + 1)` for the single layer."""
        d_model, d_mlp = self.W_in.shape
        return d_model + (d_mlp if self.form == "three_layers" else 0) + self.n_ctx + 1

    @property
    def n_heads(self) -> int:
        """`d_mlp` entrywise heads and two linear ones; or `d_mlp`, and one more for `b_out`."""
        linear = 2 if self.form == "three_layers" else int(self.b_out is not None)
        return self.W_in.shape[1] + linear

    def __call__(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch pos d_model"]:
        """What the MLP adds to X, computed by attention."""
        if x.ndim > 2:
            return torch.stack([self(row) for row in x])
        stream = self.augment(x)
        return (self.run(stream) - stream)[: len(x), : x.shape[-1]]

    def augment(self, x: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos_and_bias d_stream"]:
        """The stream: a bias row last, scratch space of zeros, one-hot positions."""
        n_pos, d_model = x.shape
        if n_pos > self.n_ctx:
            raise ValueError(
                f"There are {n_pos} tokens, and this layer takes {self.n_ctx}, because each position "
                "has a coordinate. Build it again with a larger n_ctx."
            )
        stream = x.new_zeros(n_pos + 1, self.d_stream)
        stream[:-1, :d_model] = x
        first = self.d_stream - self.n_ctx - 1
        stream[torch.arange(n_pos), first + torch.arange(n_pos)] = 1
        stream[-1, -1] = 1
        return stream

    def run(
        self, stream: Float[Tensor, "pos_and_bias d_stream"]
    ) -> Float[Tensor, "pos_and_bias d_stream"]:
        """The attention layers alone, on a stream as `augment` makes it."""
        if self.form == "three_layers":
            return self.three_layers(stream)
        return self.one_layer(stream)

    def self_matrix(self) -> Float[Tensor, "d_stream d_stream"]:
        """`W_QK` of a linear step: 2 Omega between equal positions, so a token attends to itself."""
        W_QK = self.W_in.new_zeros(self.d_stream, self.d_stream)
        places = range(self.d_stream - self.n_ctx - 1, self.d_stream)
        W_QK[places, places] = 2 * self.omega
        return W_QK

    def entry_matrix(
        self, read: Float[Tensor, "*unit d_stream"]
    ) -> Float[Tensor, "*unit d_stream d_stream"]:
        """`W_QK` of an entrywise step that reads one direction, or a matrix for each of several.

        Row j scores `-read . x_j` on every token and 0 on the bias token, plus 2 Omega on j and on
        the bias token.
        """
        first = self.d_stream - self.n_ctx - 1
        W_QK = self.self_matrix().repeat(*read.shape[:-1], 1, 1)
        W_QK[..., first:-1, -1] = 2 * self.omega
        W_QK[..., first:-1] -= read[..., None]
        return W_QK

    def read_by(self, unit: int) -> Float[Tensor, " d_stream"]:
        """What a neuron reads: its scratch coordinate, or `W_in` with the bias on the positions."""
        d_model = len(self.W_in)
        read = self.W_in.new_zeros(self.d_stream)
        if self.form == "three_layers":
            read[d_model + unit] = 1
            return read
        read[:d_model] = self.W_in[:, unit]
        if self.b_in is not None:
            read[d_model:-1] = self.b_in[unit]
        return read

    def linear_step(self, stream: Tensor, V: Tensor) -> Tensor:
        """What one head writes that attends to itself and has the value matrix V."""
        return (stream @ self.self_matrix() @ stream.T).softmax(-1) @ stream @ V

    def three_layers(self, stream: Tensor) -> Tensor:
        """Into the scratch space, the activation there, and out of it."""
        d_model, d_mlp = self.W_in.shape
        scratch, ones = slice(d_model, d_model + d_mlp), slice(d_model + d_mlp, self.d_stream - 1)
        V = stream.new_zeros(self.d_stream, self.d_stream)
        V[:d_model, scratch] = self.W_in
        if self.b_in is not None:
            V[ones, scratch] = self.b_in  # the 1s of the positions serve as bias
        stream = stream + self.linear_step(stream, V)

        written = torch.zeros_like(stream)
        for unit in range(d_mlp):
            read = self.read_by(unit)
            pattern = (stream @ self.entry_matrix(read) @ stream.T).softmax(-1)
            # -x (1 - sigmoid(x)), so that x becomes SiLU(x)
            written = written - torch.outer(pattern @ stream @ read, read)
        stream = stream + written

        V = torch.zeros_like(V)
        V[scratch, :d_model] = self.W_out
        V[scratch, scratch] = -torch.eye(d_mlp, dtype=V.dtype, device=V.device)  # clears it
        if self.b_out is not None:
            V[ones, :d_model] = self.b_out
        return stream + self.linear_step(stream, V)

    def one_layer(self, stream: Tensor) -> Tensor:
        """Every neuron reads, acts and writes in one layer."""
        d_model, d_mlp = self.W_in.shape
        reads = torch.stack([self.read_by(unit) for unit in range(d_mlp)])
        # with -read, the weight on itself is sigmoid(x)
        pattern = (stream @ self.entry_matrix(-reads) @ stream.T).softmax(-1)  # [unit, pos, pos]
        gathered = (pattern @ stream @ reads[..., None])[..., 0].T
        written = F.pad(gathered @ self.W_out, (0, self.d_stream - d_model))
        if self.b_out is not None:
            V = stream.new_zeros(self.d_stream, self.d_stream)
            V[d_model:-1, :d_model] = self.b_out
            written = written + self.linear_step(stream, V)
        return stream + written


@checked
def omega_mlp(
    W_in: Float[Tensor, "d_model d_mlp"],
    W_out: Float[Tensor, "d_mlp d_model"],
    b_in: Float[Tensor, " d_mlp"] | None = None,
    b_out: Float[Tensor, " d_model"] | None = None,
    *,
    n_ctx: int,
    omega: float | int | None = None,
    form: Literal["three_layers", "one_layer"] = "three_layers",
) -> OmegaMLP:
    """The MLP `SiLU(x W_in + b_in) W_out + b_out` by the post's attention layers, without a mask.

    Every score matrix has the rank N + 1, so the heads are wider than any trained head.

    Parameters
    ----------
    W_in, W_out, b_in, b_out : the weights of the MLP
    n_ctx : at most how many tokens there are
    omega : the large number; by default the smallest useful one. Outside of `omega_window` it is
        used with a warning.
    form : three attention layers, or the single one of the post's update

    Notes
    -----
    Error: leak and rounding; see `omega_window`. Source: "Attention is all you need, no really"
    (January 2023), which ignores masks, norms and biases, and writes `1 - sigma(x)` for `sigma(x)`
    at the bias token.
    """
    low, high = omega_window(n_ctx + 1, W_in.dtype)
    omega = low if omega is None else float(omega)
    if not low <= omega <= high:
        effect = "other tokens leak in" if omega < low else "large scores are rounded too coarsely"
        warnings.warn(
            f"omega={omega:g} lies outside [{low:.3g}, {high:.3g}] for {n_ctx} positions in "
            f"{W_in.dtype}: {effect}.",
            stacklevel=2,
        )
    return OmegaMLP(W_in, W_out, b_in, b_out, n_ctx, omega, form)
