"""Gated MLPs as heads: the query reads the gate, the value reads the other branch."""

import math
from functools import cache
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Limit, NonNegative, must, one_dtype, public, whole
from circuitkit.anatomy import Neurons
from circuitkit.conversion._head_sum import FUNCTIONS, HeadSum

MOST_GATE_HEADS = 64
GateHeads = Annotated[int, whole(1, MOST_GATE_HEADS, "a neuron has as many heads")]
_MOST_REACH = 200.0
_WEIGHT_PER_REACH = 100.0


def _one_knob(activation: str, heads_per_neuron: int | None, max_error: float | None) -> Any:
    one = (heads_per_neuron is None) != (max_error is None) and heads_per_neuron != 1
    return activation == "sigmoid" or one or f"exactly one of heads_per_neuron (2 to {MOST_GATE_HEADS}) and max_error: each decides the other"


@public
@must(lambda activation: activation in (*FUNCTIONS, "sigmoid") or f"one of {sorted([*FUNCTIONS, 'sigmoid'])}, which a gate can be")
@must(lambda reach, activation: activation == "sigmoid" or reach <= _MOST_REACH
     or f"a finite range up to {_MOST_REACH:g}: state the range of the gate's pre-activations, or leave this layer as it is")
@must(_one_knob)
def gate_sum(
    activation: str, reach: Limit, heads_per_neuron: GateHeads | None = None, max_error: NonNegative | None = None
) -> HeadSum:
    """Sigmoids that follow a gate's activation, `f(g) = sum_i d_i sigmoid(b_i g + c_i)` for `|g| <= reach`, fitted here and now.

    A head multiplies a sigmoid of its query by a value that is linear in the stream. So a gate that *is* a sigmoid is one
    head, exactly; any other gate is a sum of sigmoids, which is bounded and can follow `f` on a finite range only. It
    takes `heads_per_neuron` (2 to 64), or the fewest of 4, 6, 8, 12, 16, ... within `max_error`. Sigmoids sit at equal distances; their weights solve a reweighted least-squares problem
    that tends to the minimax fit; `sum |d|` is kept below `100 reach`, which bounds the loss of digits.
    **Error**: `.error`, certified between grid points by a bound on the second derivative. **Source**: ours; the paper leaves
    gated MLPs out.
    """
    if activation == "sigmoid":
        return HeadSum("sigmoid", (1.0,), (0.0,), (0.0,), (1.0,), 0.0)
    if heads_per_neuron is not None:
        return _fit(activation, float(reach), heads_per_neuron)
    for k in (4, 6, 8, 12, 16, 24, 32, 48, MOST_GATE_HEADS):
        fit = _fit(activation, float(reach), k)
        if max_error is not None and fit.error <= max_error:
            return fit
    raise ValueError(
        f"max_error={max_error:g} cannot be met for a {activation!r} gate on [-{reach:g}, {reach:g}]: {MOST_GATE_HEADS} "
        f"heads per neuron reach {_fit(activation, float(reach), MOST_GATE_HEADS).error:.3g}; allow more error or state a smaller gate_range that holds"
    )


@cache
def _fit(activation: str, reach: float, k: int) -> HeadSum:
    # Points crowd at the ends, where a fit is worst; the middle is where the activation bends.
    half = np.linspace(-1, 1, 161)
    x = np.unique(np.concatenate([reach * np.sin(half * np.pi / 2), np.clip(half * 6, -reach, reach)]))
    target = _reference(activation, x)
    tried = []
    for width in (1.0, 1.4, 2.0):
        for margin in (0.0, 0.2):
            centres = np.linspace(-1, 1, k - 1) * reach * (1 + margin) if k > 2 else np.zeros(1)
            b = 1 / (width * (centres[1] - centres[0])) if k > 2 else 1 / reach
            features = np.concatenate([_sigmoid(b * (x[:, None] - centres)), np.full((len(x), 1), 0.5)], 1)
            weights = _reweighted(features, target, _WEIGHT_PER_REACH * max(reach, 1.0))
            tried.append((np.abs(features @ weights - target).max(), b, centres, weights))
    _, slope, centres, weights = min(tried, key=lambda fit: fit[0])
    columns = np.r_[np.full(k - 1, slope), 0.0], np.r_[-slope * centres, 0.0], weights
    b, c, d = (tuple(float(v) for v in column) for column in columns)
    return HeadSum(activation, b, c, (0.0,) * k, d, float(_certified(activation, reach, b, c, d)), reach)


def _reweighted(features: np.ndarray, target: np.ndarray, most: float) -> np.ndarray:
    """Lawson's iteration: least squares whose weights grow where the error is largest."""
    importance, best = np.ones(len(target)), (math.inf, np.zeros(features.shape[1]))
    k = features.shape[1]
    for _ in range(8):
        root = np.sqrt(importance)[:, None]
        for ridge in (1e-12, 1e-8, 1e-6, 1e-4, 1e-2):
            rows = np.concatenate([features * root, ridge * np.sqrt(len(target)) * np.eye(k)])
            weights = np.linalg.lstsq(rows, np.r_[target * root[:, 0], np.zeros(k)], rcond=None)[0]
            if np.abs(weights).sum() <= most:
                break
        size = np.abs(features @ weights - target)
        if size.max() < best[0] and np.abs(weights).sum() <= most:
            best = (size.max(), weights)
        importance = importance * (size / size.max() + 1e-3)
        importance /= importance.mean()
    return best[1]


def _certified(activation: str, reach: float, *terms: tuple[float, ...]) -> float:
    b, c, w = map(np.array, terms)
    x = np.linspace(-reach, reach, 40001)
    approx = np.zeros_like(x)
    for bi, ci, wi in zip(b, c, w, strict=True):
        approx += wi * _sigmoid(bi * x + ci)
    curvature = 2.0 + float((np.abs(w) * b**2).sum()) * 0.1
    if activation == "relu":  # its kink is a grid point, so every piece between two of them is smooth
        curvature -= 2.0
    step = x[1] - x[0]
    return (
        float(np.abs(approx - _reference(activation, x)).max())
        + curvature * step**2 / 8
        + 1e-15 * float(np.abs(w).sum())
    )


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))


def _reference(activation: str, x: np.ndarray) -> np.ndarray:
    return FUNCTIONS[activation](torch.from_numpy(x)).numpy()


@public
@one_dtype("W_gate", "W_in", "W_out", "b_gate", "b_in", "b_out")
def gated_neuron_heads(
    W_gate: Float[Tensor, "d_model d_mlp"],
    W_in: Float[Tensor, "d_model d_mlp"],
    W_out: Float[Tensor, "d_mlp d_model"],
    b_gate: Float[Tensor, " d_mlp"] | None = None,
    b_in: Float[Tensor, " d_mlp"] | None = None,
    b_out: Float[Tensor, " d_model"] | None = None,
    activation: str = "sigmoid",
    heads_per_neuron: GateHeads | None = None,
    *,
    gate_range: Limit = math.inf,
    max_error: NonNegative | None = None,
) -> Neurons:
    """A gated MLP as heads. Gated by a sigmoid, a neuron is one head exactly: `W_Q` is the gate and `W_V` the input.

    SwiGLU (`silu`), GEGLU and ReGLU need a finite `gate_range` and several heads (`gate_sum`); an output entry is then
    wrong by at most `error * max_j sum_n |u_n W_out[n, j]|`, with `u` the other branch.
    **Shapes**: W_gate and W_in `[d_model, d_mlp]`, W_out `[d_mlp, d_model]`. **Source**: ours.
    """
    terms = gate_sum(activation, gate_range, heads_per_neuron, max_error)
    return Neurons(W_in, W_out, b_in, b_out, terms, W_gate=W_gate, b_gate=b_gate)
