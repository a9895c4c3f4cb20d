"""The neuron-heads of one MLP without a copy of any weight: one matrix in, one out, and k numbers for every head."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._heads import Heads


@dataclass(frozen=True, eq=False, repr=False)
class Neurons:
    """Neuron n reads `v = x W_in + b_in` and the gate `g`, which is `v` itself in an MLP without gates.

    Its i-th head gathers `sigmoid(b_i g + c_i) (a_i v + d_i)` and writes that times `W_out[n]`: attention of the token
    over the bias token (key -1, value 0) and itself. **Source**: "Attention-Only Transformers", Theorem 2.
    """

    layer: int
    W_in: Float[Tensor, "d_model d_mlp"]
    W_out: Float[Tensor, "d_mlp d_model"]
    b_in: Float[Tensor, " d_mlp"] | None
    terms: Any
    """A sum of heads, `HeadSum` or (of a gate) `GateSum`."""
    W_gate: Float[Tensor, "d_model d_mlp"] | None = None
    b_gate: Float[Tensor, " d_mlp"] | None = None

    def __len__(self) -> int:
        return self.W_in.shape[1] * len(self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.name(row) for row in range(len(self)))

    def name(self, row: int) -> str:
        k = len(self.terms)
        return f"L{self.layer}N{row // k}" + (f".{row % k}" if k > 1 else "")

    def rows(self, neuron: int, term: int | None) -> list[int]:
        """The heads of a neuron, or one of them; none where it does not exist."""
        k = len(self.terms)
        if not neuron < self.W_in.shape[1] or not (term or 0) < k:
            return []
        return [neuron * k + term] if term is not None else list(range(neuron * k, neuron * k + k))

    def reads(self, x: Float[Tensor, "*batch pos d_model"]) -> tuple[Tensor, Tensor]:
        """What queries and values read, `[..., pos, neuron]` each."""
        value = x @ self.W_in if self.b_in is None else x @ self.W_in + self.b_in
        if self.W_gate is None:
            return value, value
        gate = x @ self.W_gate
        return gate if self.b_gate is None else gate + self.b_gate, value

    def written(self, gate: Float[Tensor, "*batch neuron"], value: Float[Tensor, "*batch neuron"]) -> Tensor:
        """What all heads together write, without forming any head's share."""
        gathered = self.terms(gate)
        return (gathered if self.W_gate is None else gathered * value) @ self.W_out

    def z(self, gate: Float[Tensor, "*batch neuron"], value: Float[Tensor, "*batch neuron"]) -> Tensor:
        """What each head gathers, `[..., head]`: its attention on the token itself times its value there."""
        b, c, a, d = (gate.new_tensor(column) for column in self._columns)
        return ((gate[..., None] * b + c).sigmoid() * (value[..., None] * a + d)).flatten(-2)

    def pattern(self, gate: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch head"]:
        """Each head's attention on the token itself; the rest is on the bias token."""
        b, c = (gate.new_tensor(column) for column in self._columns[:2])
        return (gate[..., None] * b + c).sigmoid().flatten(-2)

    def heads(self, rows: list[int]) -> Heads:
        """Some of them as `Heads` on `d_model + 1` coordinates, of which the last is 1 on the bias token only."""
        k, place = len(self.terms), self.W_in.new_tensor(rows, dtype=torch.long)
        b, c, a, d = (self.W_in.new_tensor(column)[place % k][:, None] for column in self._columns)
        n = place // k
        zero = self.W_in.new_zeros(len(rows), 1)
        value, shift = self.W_in.T[n], zero if self.b_in is None else self.b_in[n][:, None]
        gate, gate_shift = value, shift
        if self.W_gate is not None:
            gate, gate_shift = self.W_gate.T[n], zero if self.b_gate is None else self.b_gate[n][:, None]
        return Heads(
            names=tuple(self.name(row) for row in rows),
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

    @property
    def _columns(self) -> tuple[tuple[float, ...], ...]:
        """`b, c, a, d` of the heads of a neuron; a gate's weight is the factor of its value."""
        t = self.terms
        return (t.b, t.c, t.w, (0.0,) * len(t)) if hasattr(t, "w") else (t.b, t.c, t.a, t.d)
