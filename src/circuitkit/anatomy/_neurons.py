"""The neuron-heads of one MLP without a copy of any weight: one matrix in, one out, and k numbers for every head."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import HeadName, HeadNames, Integer, place_of, public
from circuitkit._contract import reads as fits
from circuitkit._heads import Heads

_MOST_PATTERN_NUMBERS = 2**22


@cache
def _names(layer: int, neurons: int, k: int) -> tuple[str, ...]:
    ends = [f".{i}" for i in range(k)] if k > 1 else [""]
    return tuple(f"L{layer}N{n}{end}" for n in range(neurons) for end in ends)


@dataclass(frozen=True, eq=False, repr=False)
class Neurons:
    """The heads of one MLP, gated or not. Call it for the fast route; `.literal` gives the same by full patterns.

    Neuron n reads `v = x W_in + b_in` and the gate `g = x W_gate + b_gate`, which is `v` itself in an MLP without gates. On the
    stream `x + [1]` its i-th head has the query `b_i g + c_i`, key -1 on the bias token and 0 elsewhere, value `a_i v + d_i` (of
    a gate, `d_i v`) and 0 on the bias token, and writes `W_out[n]`. Its softmax over itself and the bias token is `(sigmoid(q),
    1 - sigmoid(q))`. **Source**: "Attention-Only Transformers", Theorem 2, with the bias token first; gates are ours.
    """

    W_in: Float[Tensor, "d_model d_mlp"]
    W_out: Float[Tensor, "d_mlp d_model"]
    b_in: Float[Tensor, " d_mlp"] | None
    b_out: Float[Tensor, " d_model"] | None
    terms: Any
    """What each neuron's heads compute, a `HeadSum`: how far that is from the activation is its `.error`."""
    layer: int = 0
    W_gate: Float[Tensor, "d_model d_mlp"] | None = None
    b_gate: Float[Tensor, " d_mlp"] | None = None

    def __len__(self) -> int:
        return self.W_in.shape[1] * len(self.terms)

    def __repr__(self) -> str:
        (d_model, d_mlp), gated = self.W_in.shape, "" if self.W_gate is None else "gated "
        return f"Neurons({d_mlp} {gated}neurons x {len(self.terms)} heads, d_model={d_model}, {self.terms.activation!r})"

    @public
    @fits("W_in")
    def __call__(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The sublayer's output by the two-key route: two scores per head and position. **Error**: `bound`, and rounding."""
        plain = self.W_gate is None and x.dtype in (
            torch.float32,
            torch.float64,
        )  # a half type's sums are made wider
        scaled = self.terms.scaled_silu if plain else None
        if scaled is None:
            return F.linear(self._gathered(*self.reads(x)), self.W_out.T, self.b_out)
        # one head per neuron: its two scales ride on the two matrix products
        query = _affine(x.flatten(0, -2), self.W_in, self.b_in, scaled[0], scaled[0])
        gathered = F.silu(query, inplace=not query.requires_grad)
        return _affine(gathered, self.W_out, self.b_out, scaled[1]).reshape(x.shape)

    @public
    @fits("W_in")
    def literal(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The same output from the full masked patterns of the heads on `x + [1]`, a few heads at a time."""
        wide = with_bias_token(x)
        step = max(1, _MOST_PATTERN_NUMBERS // (wide[..., 0].numel() * max(wide.shape[-2:])))
        total = torch.zeros_like(wide)
        for first in range(0, len(self), step):
            total = total + self.take(range(len(self))[first : first + step]).results(wide).sum(-3)
        out = total[..., 1:, :-1]
        return out if self.b_out is None else out + self.b_out

    @public
    @fits("W_in")
    def pattern(
        self, x: Float[Tensor, "*batch pos d_model"], heads: HeadNames | None = None
    ) -> Float[Tensor, "*batch head pos_and_bias pos_and_bias"]:
        """Full patterns `[..., head, dst, src]` of chosen heads; position 0 is the bias token."""
        heads = [heads] if isinstance(heads, (str, int)) else heads
        chosen = range(len(self)) if heads is None else [self.index(head) for head in heads]
        return self.take(chosen).pattern(with_bias_token(x))

    @property
    def names(self) -> tuple[str, ...]:
        """`L{layer}N{neuron}`, and `.{term}` behind it if a neuron has several heads."""
        return _names(self.layer, self.W_in.shape[1], len(self.terms))

    @public
    def index(self, head: HeadName) -> int:
        """Position of a head, by name or number."""
        return place_of(head, self.names, "neuron-head")

    @property
    def heads(self) -> Heads:
        """All of them as `Heads` on `d_model + 1` coordinates, mask `"self_or_first"`: what the book's tools read."""
        return self.take(range(len(self)))

    @public
    def neuron(self, *neurons: Integer) -> Heads:
        """The heads of chosen neurons as `Heads`."""
        k, n = len(self.terms), self.W_in.shape[1]
        if outside := [neuron for neuron in neurons if not -n <= neuron < n]:
            raise ValueError(f"no neurons {outside} in this layer; it has neurons 0 to {n - 1}")
        return self.take(range(n)[neuron] * k + i for neuron in neurons for i in range(k))

    def rows(self, neuron: int, term: int | None) -> list[int]:
        """The heads of a neuron, or one of them; none where it does not exist."""
        k = len(self.terms)
        if not neuron < self.W_in.shape[1] or not (term or 0) < k:
            return []
        return [neuron * k + term] if term is not None else list(range(neuron * k, neuron * k + k))

    @property
    def bound(self) -> float:
        """Largest error of any output entry in exact arithmetic, whatever the input: `error * max_j sum_n |W_out[n, j]|`.

        Infinite for gates, whose error is multiplied by what the other branch reads: a converted model's report bounds that.
        """
        if self.W_gate is not None and self.terms.error:
            return math.inf
        return float(
            (self.terms.errors(self.W_out)[:, None] * self.W_out.detach().abs()).sum(0).max()
        )

    @public
    @fits("W_in")
    def measured_reach(self, x: Float[Tensor, "*batch pos d_model"]) -> float:
        """The largest pre-activation on this input; the error holds while it is at most `terms.reach`."""
        return float(self.reads(x)[0].detach().abs().max()) if len(self) else 0.0

    def reads(self, x: Float[Tensor, "*batch pos d_model"]) -> tuple[Tensor, Tensor]:
        """What queries and values read, `[..., pos, neuron]` each."""
        value = F.linear(x, self.W_in.T, self.b_in)
        return (value if self.W_gate is None else F.linear(x, self.W_gate.T, self.b_gate)), value

    def written(
        self, gate: Float[Tensor, "*batch neuron"], value: Float[Tensor, "*batch neuron"]
    ) -> Tensor:
        """What all heads together write, without forming any head's share."""
        return self._gathered(gate, value) @ self.W_out

    def _gathered(self, gate: Tensor, value: Tensor) -> Tensor:
        gathered = self.terms(gate)
        return gathered if self.W_gate is None else gathered * value

    def z(
        self, gate: Float[Tensor, "*batch neuron"], value: Float[Tensor, "*batch neuron"]
    ) -> Tensor:
        """What each head gathers, `[..., head]`: its attention on the token itself times its value there."""
        _, _, a, d = self._columns(gate)
        return self.looks(gate) * (value[..., None] * a + d).flatten(-2)

    def looks(self, gate: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch head"]:
        """Each head's attention on the token itself; the rest is on the bias token."""
        b, c, _, _ = self._columns(gate)
        return (gate[..., None] * b + c).sigmoid().flatten(-2)

    def take(self, rows: Iterable[int]) -> Heads:
        """Some of them as `Heads` on `d_model + 1` coordinates, of which the last is 1 on the bias token only."""
        rows = list(rows)
        k, place = len(self.terms), self.W_in.new_tensor(rows, dtype=torch.long)
        n = place // k
        columns = self._columns(self.W_in)
        b, c, a, d = (
            column[n if len(column) > 1 else 0 * n, place % k][:, None] for column in columns
        )
        zero = self.W_in.new_zeros(len(rows), 1)
        value, shift = self.W_in.T[n], zero if self.b_in is None else self.b_in[n][:, None]
        gate, gate_shift = value, shift
        if self.W_gate is not None:
            gate, gate_shift = (
                self.W_gate.T[n],
                zero if self.b_gate is None else self.b_gate[n][:, None],
            )
        return Heads(
            names=tuple(map(self.names.__getitem__, rows)),
            W_Q=torch.cat([b * gate, zero], 1)[..., None],
            W_K=torch.cat([torch.zeros_like(gate), zero - 1], 1)[..., None],
            W_V=torch.cat([a * value, -(a * shift + d)], 1)[..., None],
            W_O=torch.cat([self.W_out[n], zero], 1)[:, None],
            b_Q=b * gate_shift + c,
            b_V=a * shift + d,
            layers=(self.layer,) * len(rows),
            scale=1.0,
            mask="self_or_first",
        )

    def _columns(self, like: Tensor) -> tuple[Tensor, ...]:
        """`b, c, a, d` of the heads, `[neuron or 1, head]`; what a gate adds up to is the factor of its value."""
        b, c, a, d = self.terms.columns(like)
        return (b, c, a, d) if self.W_gate is None else (b, c, d, a)


def _affine(
    x: Tensor, W: Tensor, b: Tensor | None, scale: float, bias_scale: float = 1.0
) -> Tensor:
    """`scale x W + bias_scale b`."""
    return x @ W * scale if b is None else torch.addmm(b, x, W, alpha=scale, beta=bias_scale)


@public
def with_bias_token(
    x: Float[Tensor, "*batch pos d_model"],
) -> Float[Tensor, "*batch pos_and_bias d_model_and_1"]:
    """`X + [1]` with the bias token first: one more coordinate, which is 1 on position 0 and 0 on the real tokens.

    **Source**: the paper's direct sum `X (+) [1]`; it puts the bias token last, which no causal mask admits.

    >>> with_bias_token(torch.tensor([[5.0, 7.0]])).tolist()
    [[0.0, 0.0, 1.0], [5.0, 7.0, 0.0]]
    """
    row = x.new_zeros(*x.shape[:-2], 1, x.shape[-1])
    out = torch.cat([row, x], -2)
    mark = torch.zeros_like(out[..., :1])
    mark[..., 0, :] = 1
    return torch.cat([out, mark], -1)


def widened(heads: Heads) -> Heads:
    """Heads of attention on the coordinates of neuron-heads: they neither read nor write the last one. Copies, by head."""
    own = heads
    wide = {name: F.pad(getattr(own, name), (0, 0, 0, 1)) for name in ("W_Q", "W_K", "W_V")}
    return replace(own, **wide, W_O=F.pad(own.W_O, (0, 1)))
