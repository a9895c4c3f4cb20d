"""How far an MLP of heads can be from the exact MLP on one input, rounding in its dtype included.

The bounds of the library are those of exact arithmetic. This analysis adds what rounding can do, so that they can be tested
in every dtype without a tolerance.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.conversion.activations import ACTIVATIONS
from circuitkit.conversion.neurons import Neurons

SLACK = 1.01  # covers products of two rounding errors, which are left out below
MAX_SLOPE = {
    "silu": 1.0999,
    "relu": 1.0,
    "gelu": 1.1290,
    "gelu_new": 1.1291,
    "quick_gelu": 1.0999,
    "sigmoid": 0.25,
}
"""No less than the slope anywhere: an error of the pre-activation is passed on at most so many times."""


@dataclass(frozen=True)
class Precision:
    """How finely a dtype rounds.

    Parameters
    ----------
    stored : half a unit in the last place of what is kept in memory
    summed : the same of the accumulator, which is float32 for the half types
    smallest : what an underflow can lose
    largest : the largest finite number
    accumulator : the dtype of sums
    """

    stored: float
    summed: float
    smallest: float
    largest: float
    accumulator: torch.dtype

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Precision":
        """The precision of a dtype."""
        accumulator = torch.float64 if dtype == torch.float64 else torch.float32
        memory = torch.finfo(dtype)
        stored = memory.eps / 2
        subnormal = 2 * stored if dtype == torch.float16 else 1.0  # float16 keeps such numbers
        summed = torch.finfo(accumulator).eps / 2
        return cls(stored, summed, memory.tiny * subnormal, memory.max, accumulator)


def linear_with_error(
    x: Float[Tensor, "row size"],
    x_error: Tensor | float,
    W: Float[Tensor, "size out"],
    b: Float[Tensor, " out"] | None,
    precision: Precision,
) -> tuple[Float[Tensor, "row out"], Float[Tensor, "row out"]]:
    """`x @ W + b` in float64, and how far the same product in some precision can be from it.

    A sum of n products is wrong by at most (n + 2) units of the accumulator times the sum of their
    sizes (Higham 2002, section 3.1); storing the result rounds once more.
    """
    W = W.double()
    b = W.new_zeros(()) if b is None else b.double()
    value = x @ W + b
    size = (x.abs() + x_error) @ W.abs() + b.abs()  # sum of the sizes of all terms
    inherited = x_error @ W.abs() if isinstance(x_error, Tensor) else torch.zeros_like(value)
    from_summing = SLACK * (W.shape[0] + 2) * precision.summed * size
    from_storing = 2 * precision.stored * (value.abs() + inherited + b.abs())
    error = inherited + from_summing + from_storing + 4 * precision.smallest
    return value, torch.where(size > precision.largest, math.inf, error)  # overflow


def sum_of_heads_error(
    neurons: Neurons, gate: Tensor, gate_error: Tensor, precision: Precision
) -> Float[Tensor, "row neuron"]:
    """Rounding in `sum_i sigmoid(b_i g + c_i) (a_i g + d_i)`, for every neuron, given an inexact g."""
    v = precision.summed
    overflow = torch.finfo(precision.accumulator).max
    underflow = torch.finfo(precision.accumulator).tiny
    total = torch.zeros_like(gate)
    size = torch.zeros_like(gate)
    g_max = gate.abs() + gate_error
    for b, c, a, d in neurons.terms.columns(gate).unbind(-1):  # each [neuron]
        # The query q = b g + c; multiplying by a power of two rounds nothing.
        query = b * gate + c
        query_moves = b.abs() * gate_error
        is_power_of_two = (c == 0) & (b.abs().frexp()[0] == 0.5)
        query_error = torch.where(is_power_of_two, 0.0, v * (3 * b.abs() * g_max + 2 * c.abs()))
        # The value z = a g + d.
        value = (a * gate + d).abs() + a.abs() * gate_error
        value_error = v * (3 * a.abs() * g_max + 2 * d.abs())
        # The weight s = sigmoid(q), whose slope is largest where |q| is smallest. torch's sigmoid
        # is taken to be right within four units.
        nearest_zero = (query.abs() - query_moves - query_error).clamp_min(0)
        slope = torch.sigmoid(nearest_zero) * torch.sigmoid(-nearest_zero)
        weight = torch.sigmoid(query + query_moves)
        weight_error = query_error * slope + 4 * v * weight + underflow
        # The product s z, rounded once.
        product_error = value * weight_error + weight * value_error + weight_error * value_error
        product_error = product_error + v * weight * value
        total += torch.where(query.abs() + query_moves > overflow, math.inf, product_error)
        size += weight * value
    from_adding = (len(neurons.terms) - 1) * v * size
    passed_on = MAX_SLOPE[neurons.terms.activation] * gate_error
    return SLACK * (total + from_adding) + passed_on


class Promise(NamedTuple):
    """For every output entry, `[..., pos, d_model]` in float64.

    Parameters
    ----------
    exact : the output of the original MLP
    approximation : how far heads in exact arithmetic can be from it
    rounding : how much more rounding can add; infinite where a number overflows
    """

    exact: Tensor
    approximation: Tensor
    rounding: Tensor


@torch.no_grad()
def promise(neurons: Neurons, x: Float[Tensor, "*batch pos d_model"]) -> Promise:
    """What a converted MLP should output on x, and how far it can be off in the dtype of x.

    Sums are taken to be made in float32 or wider. The error of each step is carried to the next.
    """
    precision = Precision.of(x.dtype)
    rows = x.double().reshape(-1, x.shape[-1])

    # 1. What every neuron reads.
    value, value_error = linear_with_error(rows, 0.0, neurons.W_in, neurons.b_in, precision)
    gate, gate_error = value, value_error
    if neurons.W_gate is not None:
        gate, gate_error = linear_with_error(rows, 0.0, neurons.W_gate, neurons.b_gate, precision)

    # 2. What its heads gather, in the place of act(gate).
    act = ACTIVATIONS[neurons.terms.activation](gate)
    fit_error = neurons.terms.errors.to(gate).expand_as(gate)
    round_error = sum_of_heads_error(neurons, gate, gate_error, precision)
    round_error = round_error + precision.stored * (act.abs() + fit_error + round_error)
    round_error = round_error + precision.smallest

    # 3. A gated neuron multiplies by its other branch.
    if neurons.W_gate is not None:
        value_max = value.abs() + value_error
        round_error = round_error * value_max + act.abs() * value_error
        fit_error = fit_error * value_max
        act = act * value
        round_error = round_error + precision.stored * (act.abs() + fit_error + round_error)
        round_error = round_error + precision.smallest

    # 4. What it writes.
    exact, total_error = linear_with_error(
        act, fit_error + round_error, neurons.W_out, neurons.b_out, precision
    )
    approximation = fit_error @ neurons.W_out.double().abs()
    rounding = (total_error - approximation).nan_to_num(nan=math.inf, posinf=math.inf)
    shape = (*x.shape[:-1], neurons.W_out.shape[-1])
    return Promise(exact.reshape(shape), approximation.reshape(shape), rounding.reshape(shape))
