"""Neurons as heads: a hand-computed neuron, slow loops, laws, both routes, gradients, messages."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit.conversion import (
    gated_neuron_heads,
    generalized_silu,
    neuron_heads,
    omega_mlp,
    with_bias_token,
)
from circuitkit.conversion._head_sum import HeadSum
from circuitkit.conversion._promise import promised

ACTIVATIONS = ["silu", "relu", "gelu", "gelu_new", "quick_gelu"]


def slow_mlp(x, W_in, W_out, b_in, b_out, activation):
    """Nested loops over positions, neurons and coordinates."""
    out = torch.zeros_like(x)
    for p in range(x.shape[0]):
        for n in range(W_in.shape[1]):
            pre = sum(float(x[p, i] * W_in[i, n]) for i in range(x.shape[1])) + (
                0 if b_in is None else float(b_in[n])
            )
            for j in range(x.shape[1]):
                out[p, j] += activation(pre) * float(W_out[n, j])
        if b_out is not None:
            out[p] += b_out
    return out


def parts(draw, seed, pos, d_model, d_mlp, dtype=torch.float64):
    shapes = [(pos, d_model), (d_model, d_mlp), (d_mlp, d_model), (d_mlp,), (d_model,)]
    return [draw(10 * seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def test_one_neuron_by_hand():
    # reads ln 3 on the first token and 0 on the second; sigmoid(ln 3) = 3/4, sigmoid(0) = 1/2; writes to coordinate 1
    log3 = math.log(3.0)
    x = torch.tensor([[log3, 9.0], [0.0, 9.0]], dtype=torch.float64)
    W_in, W_out = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([[0.0, 2.0]]).double()
    mlp = neuron_heads(W_in, W_out)
    pattern = mlp.pattern(x, [0])[0]
    expected = torch.tensor([[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0, 0.5]], dtype=torch.float64)
    assert torch.allclose(pattern, expected, atol=1e-15)
    assert torch.allclose(
        mlp(x), torch.tensor([[0.0, 1.5 * log3], [0.0, 0.0]]).double(), atol=1e-15
    )
    assert torch.allclose(mlp.literal(x), mlp(x), atol=1e-15)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("biases", [True, False])
def test_against_nested_loops(activation, biases, draw, scalar):
    x, W_in, W_out, b_in, b_out = parts(draw, 1, 3, 5, 7)
    b_in, b_out = (b_in, b_out) if biases else (None, None)
    mlp = neuron_heads(W_in, W_out, b_in, b_out, activation)
    reference = slow_mlp(x, W_in, W_out, b_in, b_out, scalar[activation])
    assert (mlp(x) - reference).abs().max() <= mlp.bound + 1e-13
    assert (mlp.literal(x) - mlp(x)).abs().max() < 1e-13


def test_silu_is_exact_to_the_last_digits(draw, scalar):
    x, W_in, W_out, b_in, b_out = parts(draw, 2, 2, 3, 5)
    reference = slow_mlp(x, W_in, W_out, b_in, b_out, scalar["silu"])
    mlp = neuron_heads(W_in, W_out, b_in, b_out, "silu")
    assert mlp.bound == 0.0
    # 2e-15 relative: three products and a sigmoid of double precision, a handful of roundings of 1.1e-16 each
    assert (mlp(x) - reference).abs().max() <= 2e-15 * reference.abs().max()


SIZES = st.permutations([1, 2, 3, 5, 7, 11])


@settings(max_examples=200, deadline=None)
@given(
    SIZES,
    st.sampled_from(ACTIVATIONS),
    st.integers(1, 8),
    st.sampled_from([torch.float64, torch.float32]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.1, 1.0, 10.0]),
    st.integers(0, 10**6),
)
def test_within_the_bound_on_random_mlps(
    sizes, activation, k, dtype, first_bias, second_bias, size, seed
):
    batch, pos, d_model, d_mlp, *_ = sizes
    generator = torch.Generator().manual_seed(seed)
    W_in, W_out, b_in, b_out, x = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in [
            (d_model, d_mlp),
            (d_mlp, d_model),
            (d_mlp,),
            (d_model,),
            (batch, pos, d_model),
        ]
    )
    x = x * size
    mlp = neuron_heads(
        W_in, W_out, b_in if first_bias else None, b_out if second_bias else None, activation, k
    )
    wide = [t.double() for t in (x, W_in, W_out, b_in, b_out)]
    pre = wide[0] @ wide[1] + (wide[3] if first_bias else 0)
    act = {
        "silu": lambda t: t * torch.sigmoid(t),
        "relu": lambda t: t.clamp_min(0),
        "gelu": lambda t: 0.5 * t * torch.special.erfc(-t / math.sqrt(2)),
        "gelu_new": lambda t: (
            0.5 * t * (1 + torch.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)))
        ),
        "quick_gelu": lambda t: t * torch.sigmoid(1.702 * t),
    }[activation]
    reference = act(pre) @ wide[2] + (wide[4] if second_bias else 0)
    # rounding: each of d_model + d_mlp + 8 k + 8 operations loses an eps of the largest sums that occur
    sums = (wide[0].abs() @ wide[1].abs() + wide[3].abs() + 1) @ wide[2].abs() + wide[4].abs()
    slack = 3 * (d_model + d_mlp + 8 * k + 8) * torch.finfo(dtype).eps * float(sums.max())
    assert (mlp(x).double() - reference).abs().max() <= mlp.bound + slack
    assert (mlp.literal(x).double() - reference).abs().max() <= mlp.bound + slack
    assert len(mlp) == d_mlp * len(mlp.terms)
    assert len(mlp.heads) == len(mlp)


def test_patterns_look_at_themselves_and_the_bias_token_only(draw):
    x, W_in, W_out, b_in, b_out = parts(draw, 3, 4, 5, 3)
    pattern = neuron_heads(W_in, W_out, b_in, b_out, "gelu", 2).pattern(x)
    assert pattern.shape == (6, 5, 5)
    allowed = torch.eye(5, dtype=torch.bool)
    allowed[:, 0] = True
    assert (pattern[:, ~allowed] == 0).all()
    assert (pattern[:, 0, 0] == 1).all()
    assert torch.allclose(pattern.sum(-1), torch.ones(6, 5).double())


def test_causal_and_equivariant(draw):
    x, W_in, W_out, b_in, b_out = parts(draw, 4, 6, 5, 7)
    mlp = neuron_heads(W_in, W_out, b_in, b_out, "gelu", 3)
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    assert torch.allclose(mlp.literal(x[order]), mlp.literal(x)[order], atol=1e-13)
    changed = x.clone()
    changed[4:] += 1
    assert torch.equal(mlp(changed)[:4], mlp(x)[:4])


def test_the_bias_token_writes_nothing(draw):
    x, W_in, W_out, b_in, b_out = parts(draw, 5, 3, 5, 7)
    stack = neuron_heads(W_in, W_out, b_in, b_out, "gelu", 2).heads
    results = stack.results(with_bias_token(x))
    assert (results[:, 0] == 0).all()  # not at its own position,
    assert (results[..., -1] == 0).all()  # and nobody to its coordinate


@pytest.mark.parametrize("route", ["__call__", "literal"])
def test_gradients_flow_through_both_routes(route, draw):
    x, W_in, W_out, b_in, b_out = parts(draw, 6, 2, 3, 5)
    leaves = [t.requires_grad_() for t in (x, W_in, W_out, b_in, b_out)]

    def run(x, W_in, W_out, b_in, b_out):
        return getattr(neuron_heads(W_in, W_out, b_in, b_out, "gelu", 2), route)(x)

    assert torch.autograd.gradcheck(run, leaves)


def test_literal_gradients_equal_two_key_gradients(draw):
    x, W_in, W_out, b_in, b_out = parts(draw, 7, 4, 5, 3)
    W_in.requires_grad_()
    mlp = neuron_heads(W_in, W_out, b_in, b_out, "relu", sharpness=50.0)
    one, two = (
        torch.autograd.grad(out.square().sum(), W_in)[0] for out in (mlp(x), mlp.literal(x))
    )
    assert torch.allclose(one, two, atol=1e-10)


def test_heads_by_neuron_and_name(draw):
    _, W_in, W_out, b_in, b_out = parts(draw, 8, 4, 5, 3)
    mlp = neuron_heads(W_in, W_out, b_in, b_out, "gelu", 2, layer=4)
    assert mlp.names == ("L4N0.0", "L4N0.1", "L4N1.0", "L4N1.1", "L4N2.0", "L4N2.1")
    assert mlp.neuron(-1).names == ("L4N2.0", "L4N2.1")
    assert mlp.heads.layers == (4,) * 6
    assert torch.equal(mlp.neuron(1).W_O[0, 0, :-1], W_out[1])
    assert torch.equal(mlp.heads["L4N2.1"].W_Q, mlp.neuron(2).W_Q[1:])
    with pytest.raises(
        ValueError, match="no neuron-head is called 'L4N3'; the neuron-heads are: L4N0.0, L4N0.1"
    ):
        mlp.index("L4N3")


def test_literal_in_pieces_equals_literal_whole(draw, monkeypatch):
    from circuitkit.anatomy import _neurons

    x, W_in, W_out, b_in, b_out = parts(draw, 9, 4, 5, 11)
    mlp = neuron_heads(W_in, W_out, b_in, b_out, "gelu", 3)
    whole = mlp.literal(x)
    monkeypatch.setattr(_neurons, "_MOST_PATTERN_NUMBERS", 100)
    assert torch.allclose(mlp.literal(x), whole, atol=1e-13)


def test_a_head_sum_of_ones_own(draw):
    x, W_in, W_out, *_ = parts(draw, 11, 2, 3, 5)
    mlp = neuron_heads(W_in, W_out, activation=generalized_silu(1 / 1.702, 1.702, "gelu", 0.0204))
    assert torch.allclose(
        mlp(x), torch.nn.functional.silu(1.702 * x @ W_in) / 1.702 @ W_out, atol=1e-13
    )
    with pytest.raises(
        ValueError, match="heads_per_neuron=2, .*expected no other knob, because a HeadSum"
    ):
        neuron_heads(
            W_in,
            W_out,
            activation=HeadSum("x", (1.0,), (0.0,), (1.0,), (0.0,), 0.0),
            heads_per_neuron=2,
        )


def test_messages_name_every_problem_at_once():
    W_in = torch.zeros(3, 5)
    W_out = torch.full((5, 3), torch.nan)
    with pytest.raises(
        ValueError,
        match=r"(?s)W_out of shape .*NaN or infinite.*b_in of shape \(4,\).*\[d_mlp\] with d_mlp=5",
    ):
        neuron_heads(W_in, W_out, torch.zeros(4))
    with pytest.raises(
        ValueError, match=r"W_out of shape \(3, 5\).*\[d_mlp, d_model\] with d_mlp=5, d_model=3"
    ):
        neuron_heads(W_in, torch.zeros(3, 5))
    with pytest.raises(ValueError, match="NaN or infinite entries"):
        neuron_heads(W_in, W_out)
    with pytest.raises(
        ValueError, match=r"W_in of .*float32, W_out of .*float64.*; expected one dtype"
    ):
        neuron_heads(W_in, torch.zeros(5, 3).double())
    with pytest.raises(ValueError, match=r"W_in of shape \(3,\).*\[d_model, d_mlp\]"):
        neuron_heads(torch.zeros(3), W_out)


@pytest.mark.usefixtures("as_a_reader")
def test_whole_numbers_and_mixed_dtypes_are_told_together():
    W_in, W_out = torch.ones(3, 5), torch.ones(5, 3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"W_out of shape .*torch\.int64.*floating-point numbers"):
        neuron_heads(W_in, W_out, torch.zeros(5, dtype=torch.float64))
    with pytest.raises(
        ValueError,
        match="b_in of shape .*float64.* expected one dtype on one device.*together with",
    ):
        neuron_heads(W_in, W_out.float(), torch.zeros(5, dtype=torch.float64))


def test_the_repr_counts_neurons_and_heads():
    mlp = neuron_heads(torch.ones(3, 5), torch.ones(5, 3), activation="gelu", heads_per_neuron=2)
    assert repr(mlp) == "Neurons(5 neurons x 2 heads, d_model=3, 'gelu')"


@pytest.mark.parametrize(("d_model", "n_pos"), [(0, 2), (4, 0), (0, 0)])
def test_nothing_to_read_is_refused_in_words_on_every_route(d_model, n_pos):
    W_in, W_out, x = torch.ones(d_model, 3), torch.ones(3, d_model), torch.ones(n_pos, d_model)
    gated = gated_neuron_heads(
        W_in, W_in, W_out, activation="silu", heads_per_neuron=4, gate_range=3.0
    )
    routes = [
        getattr(mlp, route)
        for mlp in (neuron_heads(W_in, W_out), gated)
        for route in ("__call__", "literal", "pattern")
    ]
    omega = omega_mlp(W_in, W_out, n_ctx=3)
    for route in (*routes, gated.measured_reach, omega, omega.error_bound):
        with pytest.raises(ValueError, match="and a position and a coordinate or more"):
            route(x)


def test_a_layer_without_neurons_writes_its_bias_and_promises_it():
    W_in, W_out, b_out, x = torch.ones(4, 0), torch.ones(0, 4), torch.arange(4.0), torch.ones(2, 4)
    gated = gated_neuron_heads(
        W_in, W_in, W_out, b_out=b_out, activation="silu", heads_per_neuron=4, gate_range=3.0
    )
    for mlp in (neuron_heads(W_in, W_out, b_out=b_out), gated):
        assert torch.equal(mlp(x), b_out.expand(2, 4))
        assert torch.equal(mlp.literal(x), b_out.expand(2, 4))
        assert mlp.measured_reach(x) == 0
        exact, approximation, rounding = promised(mlp, x)
        assert torch.equal(exact, b_out.double().expand(2, 4))
        assert float(approximation.max()) == 0 < float(rounding.max()) < 1e-5
    omega = omega_mlp(W_in, W_out, b_out=b_out, n_ctx=3)
    assert (omega(x) - b_out).abs().max() <= omega.error_bound(x) < 1e-4
