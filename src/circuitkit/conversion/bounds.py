"""What a conversion promises: how far the heads of an MLP can be from it, and how far they are."""

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.conversion.activations import ACTIVATIONS, HeadSum
from circuitkit.conversion.neurons import Neurons
from circuitkit.norms import FrozenNorm


def largest_reads(
    norm: Any, W: Float[Tensor, "d_model d_mlp"], b: Float[Tensor, " d_mlp"] | None
) -> Float[Tensor, " d_mlp"]:
    """For each neuron, the largest `|norm(x) W + b|` that any x can cause; infinite without a norm.

    A normalized row is at most `sqrt(d_model)` long. A part in a thousand is added for rounding.
    """
    W = W.detach().double()
    row = torch.linspace(-1, 1, len(W), dtype=W.dtype, device=W.device)[None, None]
    wide = None if norm is None else copy.deepcopy(norm.original_component).double()
    # a norm maps long rows to the same, however long; an identity does not
    if wide is None or not torch.allclose(wide(1e6 * row), wide(1e5 * row), rtol=1e-3):
        return torch.full_like(W[0], math.inf)
    frozen = FrozenNorm.of(wide, torch.ones_like(row[..., :1]), row)
    shift = frozen.bias.detach() @ W
    shift = shift if b is None else shift + b.detach().double()
    gain = frozen.gain.detach()[:, None]
    return 1.001 * (math.sqrt(len(W)) * (gain * W).norm(dim=0) + shift.abs())


def bound_of(
    W_out: Float[Tensor, "d_mlp d_model"], terms: HeadSum, largest_values: Float[Tensor, " d_mlp"]
) -> float:
    """The largest error of an output entry: `max_j sum_n errors[n] |W_out[n, j]|`.

    In a gated MLP, the error of each gate is multiplied by what the other branch reads, which is at
    most `largest_values`.
    """
    W_out = W_out.detach().double()
    errors = terms.errors.to(W_out).expand(len(W_out))
    if terms.is_gate:
        # where the error is 0, a value of unknown size does not matter
        errors = torch.where(errors == 0, 0.0, errors * largest_values)
    if W_out.numel() == 0:
        return 0.0
    weighted = W_out.abs() * errors[:, None]
    return float(weighted.nan_to_num(nan=0.0, posinf=math.inf).sum(0).max())


@torch.no_grad()
def measured_error(neurons: Neurons, x: Float[Tensor, "*batch pos d_model"]) -> float:
    """The largest error of an output entry on x, with every step in float64."""
    weights = {
        name: getattr(neurons, name) for name in ("W_in", "W_out", "b_in", "W_gate", "b_gate")
    }
    doubled = {name: None if w is None else w.double() for name, w in weights.items()}
    gate, value = replace(neurons, **doubled).reads(x.double())
    error = neurons.terms(gate) - ACTIVATIONS[neurons.terms.activation](gate)
    if neurons.terms.is_gate:
        error = error * value
    written = error @ doubled["W_out"]
    return float(written.abs().max()) if written.numel() else 0.0
