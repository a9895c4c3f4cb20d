"""Gated MLPs: a sigmoid gate is one head, other gates within their bound on their range, refusals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from circuitkit.conversion import gate_sum, gated_neuron_heads
from circuitkit.conversion._head_sum import gate_sums

GATES = {
    "sigmoid": torch.sigmoid,
    "silu": lambda g: g * torch.sigmoid(g),
    "relu": lambda g: g.clamp_min(0),
    "gelu": lambda g: 0.5 * g * torch.special.erfc(-g / math.sqrt(2)),
}


def test_a_sigmoid_gate_is_one_head_by_hand():
    # the gate reads ln 3, so the head looks at itself with weight 3/4; the value reads 4
    x = torch.tensor([[math.log(3.0), 4.0]], dtype=torch.float64)
    gate, value, out = (
        torch.tensor(w).double() for w in ([[1.0], [0.0]], [[0.0], [1.0]], [[2.0, 0.0]])
    )
    mlp = gated_neuron_heads(gate, value, out)
    assert len(mlp) == 1
    assert torch.allclose(mlp(x), torch.tensor([[6.0, 0.0]]).double())
    assert torch.allclose(mlp.literal(x), mlp(x))


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("biases", [True, False])
def test_both_routes_against_the_formula(activation, biases, draw):
    x, gate, value, out = draw(0, 3, 5), draw(1, 5, 7) / 3, draw(2, 5, 7), draw(3, 7, 5)
    b_gate, b_in, b_out = (draw(4, 7), draw(5, 7), draw(6, 5)) if biases else (None, None, None)
    knobs = {} if activation == "sigmoid" else {"heads_per_neuron": 16, "gate_range": 8.0}
    mlp = gated_neuron_heads(gate, value, out, b_gate, b_in, b_out, activation, **knobs)
    g, u = x @ gate + (b_gate if biases else 0), x @ value + (b_in if biases else 0)
    exact = (GATES[activation](g) * u) @ out + (b_out if biases else 0)
    bound = mlp.terms.error * float((u.abs() @ out.abs()).max()) if mlp.terms.error else 0.0
    assert mlp.measured_reach(x) == pytest.approx(float(g.abs().max()))
    assert (mlp(x) - exact).abs().max() <= bound + 1e-11
    assert (mlp.literal(x) - mlp(x)).abs().max() < 1e-10


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["silu", "relu", "gelu", "gelu_new", "quick_gelu"]),
    st.sampled_from([0.3, 2.0, 9.0, 40.0, 290.0]),
    st.integers(2, 32),
)
def test_the_error_holds_on_the_whole_range(activation, reach, k):
    terms = gate_sum(activation, reach, heads_per_neuron=k)
    assert terms.reach >= reach
    x = torch.linspace(-terms.reach, terms.reach, 7919, dtype=torch.float64)
    if activation == "gelu_new":
        exact = torch.nn.functional.gelu(x, approximate="tanh")
    else:
        exact = x * torch.sigmoid(1.702 * x) if activation == "quick_gelu" else GATES[activation](x)
    worst = float((terms(x) - exact).abs().max())
    assert 2 <= len(terms) <= k
    assert worst <= terms.error
    assert terms.error < 2 * worst + 1e-6
    assert sum(map(abs, terms.d)) <= 20 * terms.reach


@pytest.mark.parametrize(
    ("reach", "k", "most"),
    [
        (30, 8, 6e-4),
        (30, 16, 1e-5),
        (30, 32, 1e-7),
        (100, 8, 1.5e-2),
        (100, 16, 2e-4),
        (100, 32, 2e-6),
    ],
)
def test_how_good_the_stored_fits_are(reach, k, most):
    assert gate_sum("silu", float(reach), k).error <= most


def test_each_neuron_has_the_fit_of_its_own_range(draw):
    reaches = [29.5, 3.0, 120.0, 30.0]
    layer = gate_sums("silu", reaches, 8)
    alone = [gate_sum("silu", reach, 8) for reach in reaches]
    g = draw(0, 5, 4) * 3
    expected = torch.stack([fit(g[:, n]) for n, fit in enumerate(alone)], -1)
    assert len(layer.sums) == 3
    narrow = layer(g.float())  # what is laid out for one type must not serve another
    assert narrow.dtype == torch.float32
    assert torch.allclose(layer(g), expected, atol=1e-10)
    assert layer.errors(g).tolist() == [fit.error for fit in alone]
    assert layer.heads(4) == 4 * 8 == 4 * len(layer)
    tracked = g.clone().requires_grad_(True)
    layer(tracked).sum().backward()
    assert tracked.grad is not None
    assert torch.allclose(layer(tracked), expected, atol=1e-10)
    half = layer(g.bfloat16())  # the sum is made in float32 and rounded once
    assert torch.equal(half, layer(g.bfloat16().float()).bfloat16())


def test_what_was_laid_out_under_a_fake_mode_is_not_read_as_numbers(draw):
    layer, g = gate_sums("silu", [3.0, 20.0], 8), draw(5, 2)
    with FakeTensorMode() as fake:
        assert layer(fake.from_tensor(g)).shape == g.shape
    assert torch.equal(layer(g), gate_sums("silu", [3.0, 20.0], 8)(g))


def test_within_an_error_each_neuron_takes_the_fewest_heads_for_its_range(draw):
    reaches = [29.5, 3.0, 120.0, 30.0]
    layer = gate_sums("silu", reaches, max_error=1e-5)
    alone = [gate_sum("silu", reach, max_error=1e-5) for reach in reaches]
    assert [len(fit) for fit in alone] == [16, 4, 32, 16] or [len(fit) for fit in alone] == [
        16,
        8,
        32,
        16,
    ]
    assert (len(layer), layer.heads(4)) == (32, sum(map(len, alone)))
    assert layer.error == max(fit.error for fit in alone) <= 1e-5
    g = draw(0, 5, 4) * 3
    expected = torch.stack([fit(g[:, n]) for n, fit in enumerate(alone)], -1)
    assert torch.allclose(layer(g), expected, atol=1e-10)
    assert torch.allclose(layer(g.clone().requires_grad_(True)), expected, atol=1e-10)
    b, c, _, d = layer.columns(g)  # the further heads of a neuron hold nothing
    assert torch.equal((d != 0).sum(1), torch.tensor([len(fit) for fit in alone]))
    assert torch.allclose(((g[..., None] * b + c).sigmoid() * d).sum(-1), expected, atol=1e-10)


def test_more_heads_help_and_max_error_takes_the_fewest():
    errors = [gate_sum("silu", 8.0, heads_per_neuron=k).error for k in (4, 8, 16, 32)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5
    terms = gate_sum("silu", 8.0, max_error=1e-3)
    assert terms.error <= 1e-3
    assert gate_sum("silu", 8.0, heads_per_neuron=12).error > 1e-3 or len(terms) <= 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("silu", math.inf, 8), "reach=inf, activation='silu'; expected a finite range up to 500"),
        (("silu", 1e4, 8), "state the range"),
        (("tanh", 8.0, 8), "activation='tanh'; expected one of .* a gate can be"),
        (("silu", 8.0), r"exactly one of heads_per_neuron \(2 to 32\) and max_error"),
        (("silu", 8.0, 65), "heads_per_neuron=65; expected an integer from 1 to 32"),
        (
            ("silu", 150.0, None, 1e-9),
            r"max_error=1e-09 cannot be met for a 'silu' gate on \[-150, 150\]: 32 heads",
        ),
    ],
)
def test_messages(arguments, message):
    with pytest.raises(ValueError, match=message):
        gate_sum(*arguments)
