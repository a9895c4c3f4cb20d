"""Bounds: random and adversarial layers and whole models in four dtypes, none exceeded.

`CIRCUITKIT_PROMISES=1000 pytest tests/library/conversion/test_bounds.py` tries more of them.
"""

import os

import pytest
import torch

from circuitkit import to_attention_only
from circuitkit.conversion import gate_sum, neuron_heads
from circuitkit.conversion.activations import head_sum
from circuitkit.conversion.bounds import largest_reads
from circuitkit.reading import converted_neurons
from circuitkit_book.stored_tables import stored_study
from tests.support.activations import EXACT, WHOLE_LINE

MANY = int(os.environ.get("CIRCUITKIT_PROMISES", "48"))
# In units of the last place of the sum of all sizes: twice the most that 240 layers lose. Half types are summed in float32.
UNITS = {torch.float64: 16, torch.float32: 4, torch.bfloat16: 1, torch.float16: 1}
DTYPES = list(UNITS)
SOME_DTYPES = [torch.float64, torch.bfloat16]
SOME_DTYPES += [pytest.param(d, marks=pytest.mark.weekly) for d in (torch.float32, torch.float16)]


def layer(seed):
    """Weights, biases and inputs of eight families, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    d, n = [(6, 7), (16, 24), (48, 96)][seed % 3]
    W_gate, W_in, W_out = normal(d, n) / d**0.5, normal(d, n) / d**0.5, normal(n, d) / n**0.5
    b_in, b_out, x = normal(n), normal(d), normal(6, d)
    family = seed // 3 % 8
    if family == 1:
        W_in *= 20
    if family == 2:  # what a neuron reads cancels
        x[:, ::2], W_in[::2], b_in = -x[:, 1::2], W_in[1::2].clone(), b_in * 1e-3
    if family == 3:  # an outlier coordinate
        x[:, 0] *= 300
    if family == 4:
        W_in, b_in = W_in * 1e-4, b_in * 1e-4
    if family == 5:  # what two neurons write cancels
        pairs = n // 2
        W_out[1 : 2 * pairs : 2], W_in[:, 1 : 2 * pairs : 2] = (
            -W_out[: 2 * pairs : 2],
            W_in[:, : 2 * pairs : 2],
        )
    if family == 6:  # at the bend
        b_in = -(x[0] @ W_in)
    if family == 7:
        x *= 30
    return W_gate, W_in, W_out, b_in, b_out, x


@torch.no_grad()
def exact_and_limits(neurons, x, dtype):
    """What an MLP computes in float64, how far exact heads can be from it, and how far rounding can take them."""
    x, act = x.double(), EXACT[neurons.terms.activation]
    W_in, W_out = neurons.W_in.double(), neurons.W_out.double()
    b_in, b_gate, b_out = (
        0.0 if bias is None else bias.double()
        for bias in (neurons.b_in, neurons.b_gate, neurons.b_out)
    )
    value = x @ W_in + b_in
    size = x.abs() @ W_in.abs() + abs(b_in)  # of the terms that are added
    error, hidden = neurons.terms.errors.double().expand_as(value), act(value)
    if neurons.W_gate is not None:
        gate = x @ neurons.W_gate.double() + b_gate
        size = size * (x.abs() @ neurons.W_gate.double().abs() + abs(b_gate))
        error, hidden = error * value.abs(), act(gate) * value
    exact, size = hidden @ W_out + b_out, size @ W_out.abs() + abs(b_out)
    return exact, error @ W_out.abs(), UNITS[dtype] * torch.finfo(dtype).eps * size


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_layer_exceeds_its_bound_by_more_than_rounding(dtype):
    for seed in range(MANY):
        W_gate, W_in, W_out, b_in, b_out, x = (tensor.to(dtype) for tensor in layer(seed))
        name = WHOLE_LINE[seed % 5]
        if seed % 4 == 3:
            largest = float((x.double() @ W_gate.double()).abs().max())
            if largest > 250:
                continue
            heads = gate_sum(name, 1.1 * largest, 8)
            mlp = neuron_heads(W_in, W_out, b_in, b_out, heads, W_gate=W_gate)
        else:
            mlp = neuron_heads(W_in, W_out, b_in, b_out, name, seed % 8 + 1)
        exact, approximation, rounding = exact_and_limits(mlp, x, dtype)
        assert ((mlp(x).double() - exact).abs() <= approximation + rounding).all(), seed


@pytest.mark.parametrize("dtype", SOME_DTYPES)
@pytest.mark.parametrize(
    ("activation", "gated"), [("relu", False), ("gelu", False), ("silu", True)]
)
def test_a_models_report_keeps_its_bounds(native, dtype, activation, gated):
    model = native(dtype, 3, act_fn=activation, gated_mlp=gated)
    converted = to_attention_only(model, heads_per_neuron=5)
    assert (converted.report.measured <= converted.report.bound).all()
    # no neuron of this ReLU model reads a number so near to the bend
    assert activation == "relu" or (converted.report.measured > 0).all()
    x = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    neurons = converted_neurons(converted, 1)
    exact, approximation, rounding = exact_and_limits(neurons, x, dtype)
    assert ((neurons(x).double() - exact).abs() <= approximation + rounding).all()


def test_sharpness_follows_the_precision(native):
    sharp = {}
    for dtype in DTYPES:
        model = native(dtype, act_fn="relu")
        converted = to_attention_only(model, heads_per_neuron=1)
        neurons = converted_neurons(converted, 0)
        sharp[dtype] = neurons.terms.terms[0][0]
        x = torch.randn(1, 9, 12, generator=torch.Generator().manual_seed(2)).to(dtype)
        # a sharper head would not be visibly closer
        assert converted.report.bound[0] < 2 * float(exact_and_limits(neurons, x, dtype)[2].max())
    assert (
        sharp[torch.float64] > sharp[torch.float32] > sharp[torch.float16] > sharp[torch.bfloat16]
    )


@pytest.mark.parametrize("kind", ["LN", "LNPre", "RMS"])
@pytest.mark.parametrize("eps", [1e-5, 30.0])
def test_no_input_makes_a_neuron_read_more_than_its_norm_allows(native, kind, eps):
    model = native(normalization_type=kind, eps=eps, n_layers=1)
    mlp, norm = model.blocks[0].mlp, model.blocks[0].ln2
    largest = largest_reads(norm, mlp.W_in, mlp.b_in).detach()
    # the gradient's direction is the worst one, up to the mean
    gain = getattr(norm.original_component, "weight", torch.ones(12, dtype=torch.float64))
    for sign in (1, -1):
        worst = sign * 1e4 * (mlp.W_in * gain[:, None]).T.detach()  # [neuron, d_model]
        reads = (norm(worst[None])[0] @ mlp.W_in + mlp.b_in).diagonal().abs().detach()
        assert (reads <= largest).all()
    closest = (norm(worst[None])[0] @ mlp.W_in).diagonal().abs().detach() + mlp.b_in.detach().abs()
    assert (closest > 0.6 * largest).all()  # not a loose limit


def test_the_stored_rows_keep_their_promises():
    rows, provenance = stored_study("minilm")
    assert rows.heads_per_neuron.tolist() == list(range(1, 9))
    assert rows.activation_error.tolist() == [head_sum("gelu", k).error for k in range(1, 9)]
    assert (rows.measured <= rows.bound).all()
    assert len(provenance["sha256"]) == 64
