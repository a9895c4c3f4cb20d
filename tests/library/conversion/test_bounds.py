"""Bounds: random and adversarial layers and whole models in four dtypes, none exceeded.

`CIRCUITKIT_PROMISES=1000 pytest tests/library/conversion/test_bounds.py` tries more of them.
"""

import math
import os
import statistics

import pytest
import torch

from circuitkit import to_attention_only
from circuitkit.conversion import gate_sum, neuron_heads
from circuitkit.conversion.activations import head_sum
from circuitkit.conversion.bounds import largest_reads
from circuitkit.parts import converted_neurons
from circuitkit_book.stored_tables import stored_study
from tests.support.activations import EXACT, WHOLE_LINE
from tests.support.rounding import promise

MANY = int(os.environ.get("CIRCUITKIT_PROMISES", "48"))
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_layer_exceeds_its_promise(dtype):
    exceeded, loose = [], []
    for seed in range(MANY):
        W_gate, W_in, W_out, b_in, b_out, x = (tensor.to(dtype) for tensor in layer(seed))
        name = WHOLE_LINE[seed % 5]
        reads = x.double() @ W_in.double() + b_in.double()
        if seed % 4 == 3:
            gate = x.double() @ W_gate.double()
            if gate.abs().max() > 250:
                continue
            heads = gate_sum(name, 1.1 * float(gate.abs().max()), 8)
            mlp = neuron_heads(W_in, W_out, b_in, b_out, heads, W_gate=W_gate)
            hidden = EXACT[name](gate) * reads
        else:
            mlp = neuron_heads(W_in, W_out, b_in, b_out, name, seed % 8 + 1)
            hidden = EXACT[name](reads)
        exact = hidden @ W_out.double() + b_out.double()
        _, approximation, rounding = promise(mlp, x)
        finite = rounding.isfinite()
        error, promised = (mlp(x).double() - exact).abs(), approximation + rounding
        exceeded += [seed] * int((finite & ~(error <= promised)).sum())
        loose += [float(promised.max() / error.max())] if finite.all() and error.max() > 0 else []
    assert exceeded == []
    assert (
        len(loose) > MANY / 3
    )  # a promise of infinity says nothing: most are finite, and not wide
    assert statistics.median(loose) < (250 if dtype == torch.float32 else 50)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("activation", "gated"), [("relu", False), ("gelu", False), ("silu", True)]
)
def test_a_models_report_keeps_its_bounds(native, dtype, activation, gated):
    model = native(torch.float64, 3, act_fn=activation, gated_mlp=gated).to(dtype)
    converted = to_attention_only(model, heads_per_neuron=5)
    assert (converted.report.measured <= converted.report.bound).all()
    # no neuron of this ReLU model reads a number so near to the bend
    assert activation == "relu" or (converted.report.measured > 0).all()
    x = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    neurons = converted_neurons(converted, 1)
    out = neurons(x)
    exact, approximation, rounding = promise(neurons, x)
    assert ((out.double() - exact).abs() <= approximation + rounding).all()


def test_by_hand_what_one_exact_neuron_loses_to_rounding():
    # one neuron, SiLU, nothing to round in the products with 1: half a unit at each of the steps that store something
    one = torch.ones(1, 1)
    exact, approximation, rounding = promise(
        neuron_heads(one, one, activation="silu"), torch.tensor([[1.0]])
    )
    silu, u = 1 / (1 + math.exp(-1)), 2.0**-24
    assert float(exact) == pytest.approx(silu, rel=1e-15)
    assert float(approximation) == 0
    read = (1.01 * 3 + 2) * u  # a product of one number and its storing
    head = (
        1.01 * (4 + 3 + 1) * u * silu + 1.0999 * read + u * silu
    )  # sigmoid, value, product; what was read; storing
    wrote = head + 1.01 * 3 * u * silu + 2 * u * silu
    assert float(rounding) == pytest.approx(wrote, rel=1e-5)


def test_sharpness_follows_the_precision(native):
    sharp = {}
    for dtype in DTYPES:
        model = native(torch.float64, act_fn="relu").to(dtype)
        converted = to_attention_only(model, heads_per_neuron=1)
        neurons = converted_neurons(converted, 0)
        sharp[dtype] = neurons.terms.terms[0][0]
        x = torch.randn(1, 9, 12, generator=torch.Generator().manual_seed(2)).to(dtype)
        # a sharper head would not be visibly closer
        assert converted.report.bound[0] < 2 * float(promise(neurons, x).rounding.max())
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
