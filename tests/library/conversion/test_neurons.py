"""Neurons as heads: computed by hand, with gates, and by name."""

import math

import pytest
import torch

from circuitkit.conversion import (
    gate_sum,
    head_sum,
    neuron_heads,
    with_bias_token,
)
from circuitkit.conversion.bounds import bound_of as bound_of_mlp
from tests.support.activations import EXACT


def bound_of(mlp):
    return bound_of_mlp(mlp.W_out, mlp.terms, torch.ones(len(mlp.W_out)))


def parts(draw, seed, pos, d_model, d_mlp, dtype=torch.float64):
    shapes = [(pos, d_model), (d_model, d_mlp), (d_mlp, d_model), (d_mlp,), (d_model,)]
    return [draw(10 * seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def test_one_neuron_by_hand():
    # reads ln 3 on the first token and 0 on the second; sigmoid(ln 3) = 3/4, sigmoid(0) = 1/2; writes to coordinate 1
    log3 = math.log(3.0)
    x = torch.tensor([[log3, 9.0], [0.0, 9.0]], dtype=torch.float64)
    W_in, W_out = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([[0.0, 2.0]]).double()
    mlp = neuron_heads(W_in, W_out)
    expected = torch.tensor([[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0, 0.5]], dtype=torch.float64)
    assert torch.allclose(mlp.pattern(x, [0])[0], expected, atol=1e-15)
    written = torch.tensor([[0.0, 1.5 * log3], [0.0, 0.0]]).double()
    assert torch.allclose(mlp(x), written, atol=1e-15)
    assert torch.allclose(mlp.literal(x), mlp(x), atol=1e-15)


def test_an_error_times_values_of_unknown_size_has_no_bound(draw):
    gate, value, out = draw(1, 5, 7) / 3, draw(2, 5, 7), draw(3, 7, 5)
    mlp = neuron_heads(value, out, None, None, gate_sum("silu", 8.0, 16), W_gate=gate)
    assert bound_of_mlp(out, mlp.terms, torch.full((7,), torch.inf)) == torch.inf


@pytest.mark.parametrize("activation", ["sigmoid", "silu", "relu", "gelu"])
@pytest.mark.parametrize("biases", [True, False])
def test_gated_mlps_against_the_formula(activation, biases, draw):
    x, gate, value, out = draw(0, 3, 5), draw(1, 5, 7) / 3, draw(2, 5, 7), draw(3, 7, 5)
    b_gate, b_in, b_out = (draw(4, 7), draw(5, 7), draw(6, 5)) if biases else (None, None, None)
    heads = activation if activation == "sigmoid" else gate_sum(activation, 8.0, 16)
    mlp = neuron_heads(value, out, b_in, b_out, heads, W_gate=gate, b_gate=b_gate)
    g, u = x @ gate + (b_gate if biases else 0), x @ value + (b_in if biases else 0)
    exact = (EXACT[activation](g) * u) @ out + (b_out if biases else 0)
    assert (mlp(x) - exact).abs().max() <= bound_of_mlp(out, mlp.terms, u.abs().amax(0)) + 1e-11
    assert (mlp.literal(x) - mlp(x)).abs().max() < 1e-10
    z = mlp.z(*mlp.reads(x)).unflatten(-1, (7, -1)).sum(-1)
    assert torch.allclose(z @ out + (b_out if biases else 0), mlp(x), atol=1e-12)


@pytest.mark.parametrize("gated", [False, True])
def test_the_bias_token_writes_nothing(gated, draw):
    x, W_in, W_out, b_in, b_out = parts(draw, 5, 3, 5, 7)
    heads = gate_sum("silu", 9.0, 4) if gated else head_sum("gelu", 2)
    gate = {"W_gate": draw(1, 5, 7), "b_gate": draw(2, 7)} if gated else {}
    mlp = neuron_heads(W_in, W_out, b_in, b_out, heads, **gate)
    results = mlp.heads().results(with_bias_token(x))
    assert results[:, 0].abs().max() < 1e-15  # not at its own position,
    assert (results[..., -1] == 0).all()  # and nobody to its coordinate


def test_heads_by_neuron_and_name(draw):
    _, W_in, W_out, b_in, b_out = parts(draw, 8, 4, 5, 3)
    mlp = neuron_heads(W_in, W_out, b_in, b_out, "gelu", 2, layer=4)
    assert mlp.names == ("L4N0.0", "L4N0.1", "L4N1.0", "L4N1.1", "L4N2.0", "L4N2.1")
    assert mlp.neuron(-1).names == ("L4N2.0", "L4N2.1")
    assert torch.equal(mlp.neuron(1).W_O[0, 0, :-1], W_out[1])
    assert torch.equal(mlp.heads([5]).W_Q, mlp.neuron(2).W_Q[1:])
    with pytest.raises(IndexError):
        mlp.neuron(3)


def test_mistakes():
    W_in, W_out = torch.zeros(3, 5), torch.zeros(5, 3)
    with pytest.raises(ValueError, match=r"float32.*float64.*Convert them to one dtype"):
        neuron_heads(W_in, W_out.double())
    with pytest.raises(ValueError, match=r"W_out=a tensor .* \(3, 5\)"):
        neuron_heads(W_in, torch.zeros(3, 5))
    with pytest.raises(ValueError, match="Write activation=gate_sum"):
        neuron_heads(W_in, W_out, activation="silu", W_gate=W_in)
    with pytest.raises(ValueError, match="Give W_gate with the first"):
        neuron_heads(W_in, W_out, activation=head_sum("gelu"), W_gate=W_in)


def test_a_layer_without_neurons_writes_its_bias():
    W_in, W_out, b_out, x = torch.ones(4, 0), torch.ones(0, 4), torch.arange(4.0), torch.ones(2, 4)
    mlp = neuron_heads(W_in, W_out, b_out=b_out)
    assert torch.equal(mlp(x), b_out.expand(2, 4))
    assert torch.equal(mlp.literal(x), b_out.expand(2, 4))
    assert bound_of(mlp) == 0


@pytest.mark.parametrize("name", ["W_in", "W_out", "b_in", "b_out", "W_gate", "b_gate"])
def test_neurons_of_nan_are_refused(name):
    weights = {each: torch.eye(2) for each in ("W_in", "W_out", "W_gate")}
    weights |= {each: torch.zeros(2) for each in ("b_in", "b_out", "b_gate")}
    neurons = neuron_heads(**weights, activation="sigmoid")
    with pytest.raises(ValueError, match="stream that was given to these neurons holds NaN"):
        neurons(torch.tensor([[0.0, torch.nan]]))
    weights[name] = weights[name] / 0
    with pytest.raises(ValueError, match=f"{name}, given to neuron_heads, holds NaN or infinite"):
        neuron_heads(**weights, activation="sigmoid")
