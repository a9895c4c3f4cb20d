"""What a conversion promises and what was measured, of a model and of one MLP; and the stored results behind chapter 4."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import public
from circuitkit._precision import finest
from circuitkit.anatomy import Neurons
from circuitkit.conversion._head_sum import FUNCTIONS
from circuitkit.models import stored

_STEEPEST = 1.13  # no activation here changes faster than its input times this: GELU does, by 1.129


@torch.no_grad()
def promised(mlp: Neurons, x: Float[Tensor, "*batch pos d_model"]) -> tuple[Tensor, Tensor, Tensor]:
    """For every output entry on the input `x`: its exact value, the approximation term and the rounding term.

    With u half a unit in the last place of the dtype and v that of the sums (float32 for the half types), the terms of
    every step are carried forward. A product of n numbers: (n + 2) v |x||W| and 2u of what is stored. A head s(q) z with
    q = b g + c, z = a g + d: dq = v (3|b g| + 2|c|), ds = dq max s' + 4 v s, dz = v (3|a g| + 2|d|), together
    |z| ds + s dz + ds dz + v s|z|; k heads: (k - 1) v sum s|z| more. A gate's sigmoid is made as (1 + tanh(q / 2)) / 2, whose
    error does not fall with it: there s is 1/2, doubled where it is multiplied and summed. An activation passes an error on at most 1.13 times.
    What a format cannot hold gives an infinite term. **Error**: assumes sums in float32 or wider, and a sigmoid
    within four units.
    """
    dtype = x.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    u, v = torch.finfo(dtype).eps / 2, torch.finfo(wide).eps / 2
    top, low = (
        torch.finfo(dtype).max,
        torch.finfo(dtype).tiny * (2 * u if dtype == torch.float16 else 1),
    )
    flat = finest(x).reshape(-1, x.shape[-1])

    def product(
        left: Tensor, error: Tensor | float, W: Tensor, b: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        W, shift = finest(W), torch.zeros((), dtype=flat.dtype) if b is None else finest(b)
        value, size = left @ W + shift, (left.abs() + error) @ W.abs() + shift.abs()
        passed = error @ W.abs() if isinstance(error, Tensor) else torch.zeros_like(value)
        wrong = (
            passed
            + 1.01 * (W.shape[0] + 2) * v * size
            + 2 * u * (value.abs() + passed + shift.abs())
            + 4 * low
        )
        return value, torch.where(size > top, math.inf, wrong)

    value, d_value = product(flat, 0.0, mlp.W_in, mlp.b_in)
    gate, d_gate = (
        (value, d_value) if mlp.W_gate is None else product(flat, 0.0, mlp.W_gate, mlp.b_gate)
    )
    each, sums = (1, len(mlp.terms) - 1) if mlp.W_gate is None else (2, 2 * len(mlp.terms))
    summed, mass = torch.zeros_like(gate), torch.zeros_like(gate)
    for b, c, a, d in zip(*(column.unbind(-1) for column in mlp.terms.columns(gate)), strict=True):
        exact = (c == 0) & (b.abs().frexp()[0] == 0.5)
        q, moved = b * gate + c, b.abs() * d_gate
        dq = torch.where(exact, 0.0, v * (3 * (b.abs() * (gate.abs() + d_gate)) + 2 * c.abs()))
        z = (a * gate + d).abs() + a.abs() * d_gate
        dz = v * (3 * a.abs() * (gate.abs() + d_gate) + 2 * d.abs())
        closest = (q.abs() - moved - dq).clamp_min(0)
        s = (
            torch.sigmoid(q + moved) if mlp.W_gate is None else torch.full_like(q, 0.5)
        )  # a gate's is (1 + tanh) / 2
        ds = (
            dq * torch.sigmoid(closest) * torch.sigmoid(-closest)
            + 4 * v * s
            + torch.finfo(wide).tiny
        )
        over = (q.abs() + moved) > torch.finfo(wide).max
        summed += torch.where(over, math.inf, z * ds + s * dz + ds * dz + each * v * s * z)
        mass += s * z
    summed = 1.01 * (summed + sums * v * mass) + _STEEPEST * d_gate
    activation = FUNCTIONS.get(mlp.terms.activation, torch.sigmoid)(gate)
    error = mlp.terms.errors(gate).expand_as(gate)
    summed = summed + u * (activation.abs() + error + summed) + low
    if mlp.W_gate is not None:
        other = value.abs() + d_value
        error, summed = error * other, summed * other + activation.abs() * d_value
        activation = activation * value
        summed = summed + u * (activation.abs() + error + summed) + low
    exact, both = product(activation, error + summed, mlp.W_out, mlp.b_out)
    approximation = error @ finest(mlp.W_out).abs()
    shape = (*x.shape[:-1], mlp.W_out.shape[-1])
    rounding = (both - approximation).nan_to_num(nan=math.inf, posinf=math.inf)
    return exact.reshape(shape), approximation.reshape(shape), rounding.reshape(shape)


@dataclass(frozen=True)
class LayerReport:
    """One converted MLP layer: heads it became, the promised `bound` on its output, the `measured` error beside it.

    **Source**: see `to_attention_only`.
    """

    layer: int
    activation: str
    neurons: int
    heads_per_neuron: float
    """On average: gated neurons within a `max_error` have as many as each needs."""
    attention_heads: int
    """Heads the layer had before."""
    activation_error: float
    """Largest error of the activation: on the whole line, or on `[-reach, reach]` for a gate."""
    bound: float
    """Promised: no output entry of this layer is wrong by more, for the same input, in exact arithmetic."""
    measured: float
    """The largest such error seen on the probe tokens, rounding in the model's precision included."""
    rounding: float
    """The largest part of the promise that rounding takes on the probe tokens, in the model's precision."""
    reach: float | None = None
    """Gated layers: the range the bound holds on; by the layer's norm no input leaves it, unless it was given."""
    measured_reach: float | None = None

    @property
    def neuron_heads(self) -> int:
        return round(self.neurons * self.heads_per_neuron)


@dataclass(frozen=True)
class Report:
    """Heads, parameters, promised bounds and measured errors of a converted model. `str(report)` is a table.

    **Source**: see `to_attention_only`.
    """

    layers: tuple[LayerReport, ...]
    parameters: int
    """Independent numbers in the converted model: as many as before, since `W_Q`, `W_V` come from one `W_in`."""
    logit_error: float
    """Largest difference of any logit from the original model's on the probe tokens."""

    @property
    def bound(self) -> float:
        """The largest promised bound of any layer."""
        return max(layer.bound for layer in self.layers)

    @property
    def heads(self) -> int:
        """All heads of the converted model."""
        return sum(layer.neuron_heads + layer.attention_heads for layer in self.layers)

    def __str__(self) -> str:
        lines = [
            f"{'layer':>5} {'activation':>10} {'heads before':>12} {'neuron-heads':>12} {'promised':>9} {'+ rounding':>10} {'measured':>9}"
        ]
        for row in self.layers:
            lines.append(
                f"{row.layer:>5} {row.activation:>10} {row.attention_heads:>12} {row.neuron_heads:>12} "
                f"{row.bound:>9.1e} {row.rounding:>10.1e} {row.measured:>9.1e}"
            )
            if (
                row.reach is not None
                and row.measured_reach is not None
                and row.measured_reach > row.reach
            ):
                lines.append(
                    f"{row.layer:>5} a gate met {row.measured_reach:.2g}, beyond the stated range {row.reach:.2g}: the bound "
                    "does not hold here; give a larger gate_range, or leave it out"
                )
        lines.append(
            f"{self.heads} heads, {self.parameters} parameters; largest logit error {self.logit_error:.1e}"
        )
        return "\n".join(lines)


class EncoderRow(NamedTuple):
    """One line of the study of a sentence encoder, for one number of heads a neuron. **Source**: see `stored_study`."""

    heads_per_neuron: int
    activation_error: float
    """Promised: the largest error of the activation."""
    bound: float
    """Promised: the largest error of any MLP output entry, over all layers."""
    measured: float
    """The largest such error seen, over all layers."""
    cosine_distance: float
    """1 - mean cosine between the sentence embeddings before and after."""
    neighbours_kept: float
    """Share of sentences whose nearest other sentence stays the same."""


class DecoderRow(NamedTuple):
    """One line of the study of a decoder on held-out text, for one number of heads a neuron.

    **Source**: see `stored_study`.
    """

    heads_per_neuron: float
    """On average; 0 is the original itself, in another precision."""
    precision: str
    """The precision that this model runs in. The model it is compared with runs in float32."""
    activation_error: float
    bound: float
    """Promised in exact arithmetic: the largest error of any MLP output entry, over all layers and all inputs."""
    measured: float
    """The largest such error seen on the probe, rounding included."""
    kl: float
    """Kullback-Leibler divergence from the original's predictions, nats a token."""
    top1: float
    """Share of places whose most likely next token stays the same."""
    perplexity: float
    seconds: float
    """Processor time over that of the original, in the same run."""
    memory: float = 0.0
    """Bytes alive beside the weights at the peak of one pass, over those of the original."""
    rounding: float = 0.0
    """Promised on the probe for rounding, in this precision."""


class TrainedRow(NamedTuple):
    """One small decoder trained with an MLP or with what may stand in its place.

    **Source**: see `stored_study`.
    """

    kind: str
    """`"mlp"`, `"untied"` neuron-heads, `"persistent"` vectors, or `"nothing"`."""
    seed: int
    numbers: int
    """Trained parameters."""
    curve: list[list[float]]
    """`[step, validation loss]`, nats a character."""
    seconds: float


class CutRow(NamedTuple):
    """What an attention head gives the right place when wires of neurons into it are cut.

    **Source**: see `stored_study`.
    """

    model: str
    head: str
    ranked: str
    """What named the pairs of neurons: their share of the `"score"`, or of what it is `"above other places"`."""
    cut: str
    """`"nothing"`, the `"named"` neurons' wires, or those of as many drawn ones of a kind."""
    values: list[float]
    """Attention on each row of tokens; of drawn neurons, the mean over rows for each draw."""


_KINDS: dict[str, Any] = {"minilm": EncoderRow, "trained": TrainedRow, "pairs": CutRow}


@public
def stored_study(
    name: Literal["minilm", "smollm2", "whisper", "trained", "pairs"],
) -> tuple[list[Any], dict[str, Any]]:
    """The rows stored for a pretrained model or a study of one, and where they came from.

    `EncoderRow`, `DecoderRow` (SmolLM2, Whisper), `TrainedRow`, or `CutRow`. **Source**: the scripts of these studies in `studies/edition-2/study`.

    >>> stored_study("whisper")[0][0].precision
    'float32'
    """
    table = stored("conversion", f"{name}.json")
    return [_KINDS.get(name, DecoderRow)(**row) for row in table["rows"]], table["provenance"]
