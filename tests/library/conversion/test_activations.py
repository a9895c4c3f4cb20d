"""Activations as sums of heads: certified errors, asymptotes, gates on their range, messages."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit.conversion import gate_sum, head_sum
from circuitkit.conversion.activations import ACTIVATIONS, SILU_SCALES
from studies import activation_fit
from tests.support.activations import EXACT

TARGETS = {1: 1.4e-2, 2: 5.4e-3, 3: 2.1e-3, 4: 4.6e-4, 5: 5e-5, 8: 1e-5}


def points():
    """Dense where the functions bend, sparse far out, and never a grid the fit was made on."""
    near = [i * 0.00137 - 9 for i in range(13200)]
    far = [sign * 1.3**i for i in range(9, 24) for sign in (-1, 1)]
    return torch.tensor(near + far, dtype=torch.float64)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_entry_computes_its_function(name):
    x = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    assert torch.allclose(ACTIVATIONS[name](x), EXACT[name](x), atol=1e-14, rtol=0)


@pytest.mark.parametrize("name", ["gelu", "gelu_new"])
@pytest.mark.parametrize("k", range(1, 9))
def test_the_promised_error_holds_and_is_not_a_loose_one(name, k):
    heads, x = head_sum(name, heads_per_neuron=k), points()
    worst = float((heads(x) - EXACT[name](x)).abs().max())
    assert len(heads) == k
    assert 0.97 * heads.error <= worst <= heads.error


def test_more_heads_are_never_worse_and_reach_the_targets():
    for name in ("gelu", "gelu_new"):
        errors = [head_sum(name, k).error for k in range(1, 9)]
        assert errors == sorted(errors, reverse=True)
        assert errors[0] < 0.0203  # the paper's head
    assert all(head_sum("gelu", k).error <= most for k, most in TARGETS.items())


@pytest.mark.parametrize("s", [1.0, 10.0, 100.0])
def test_relu_is_wrong_by_what_the_paper_says(s):
    heads, x = head_sum("relu", sharpness=s), torch.arange(-3, 3, 0.001, dtype=torch.float64)
    worst = float((heads(x) - x.clamp_min(0)).abs().max())
    assert heads.error == pytest.approx(0.2785 / s, rel=1e-3)
    assert 0.99 * heads.error <= worst <= heads.error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32_and_rounded_once(dtype, draw):
    heads, x = head_sum("gelu", 8), draw(0, 50).to(dtype)
    assert torch.equal(heads(x), heads(x.float()).to(dtype))


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["silu", "relu", "gelu", "gelu_new", "quick_gelu"]),
    st.sampled_from([2.0, 10.0, 40.0, 44.0, 300.0]),
    st.integers(2, 32),
)
def test_the_error_of_a_gate_holds_on_the_whole_range_and_is_not_a_loose_one(activation, stored, k):
    reach = stored / SILU_SCALES.get(activation, 1.0) * (1 - 1e-12)  # a range that has fits
    heads = gate_sum(activation, reach, heads_per_neuron=k)
    x = torch.linspace(-reach, reach, 7919, dtype=torch.float64)
    worst = float((heads(x) - EXACT[activation](x)).abs().max())
    assert 2 <= len(heads) <= k
    assert worst <= heads.error
    assert heads.error < 2 * worst + 1e-6
    assert heads.coefficients[3].abs().sum() <= 20 * reach


@pytest.mark.parametrize("activation", ["silu", "relu", "quick_gelu"])
def test_each_neuron_has_the_fit_of_its_own_range(activation, draw):
    reaches = [29.5, 3.0, 120.0, 30.0]
    layer = gate_sum(activation, torch.tensor(reaches, dtype=torch.float64), 8)
    alone = [gate_sum(activation, reach, 8) for reach in reaches]
    g = draw(0, 5, 4) * 3
    expected = torch.stack([fit(g[:, n]) for n, fit in enumerate(alone)], -1)
    assert torch.allclose(layer(g), expected, atol=1e-10)
    assert layer.errors.tolist() == [fit.error for fit in alone]


def test_an_activation_without_fits_is_named(monkeypatch):
    """Between two steps of adding an activation, its name is known, and no sum follows it."""
    monkeypatch.setitem(ACTIVATIONS, "softplus", torch.nn.functional.softplus)
    with pytest.raises(
        ValueError, match="no fits of 'softplus' in data/conversion/activations.json"
    ):
        head_sum("softplus")
    with pytest.raises(
        ValueError, match="no fits of 'softplus' in data/conversion/gates.safetensors"
    ):
        gate_sum("softplus", 3.0)


def test_the_script_that_adds_an_activation_fits_and_stores_it(monkeypatch, tmp_path):
    """Softplus is none of the shipped activations; its fit is compared with its formula."""
    monkeypatch.setitem(ACTIVATIONS, "softplus", torch.nn.functional.softplus)
    monkeypatch.setitem(ACTIVATIONS, "tanh", torch.tanh)
    monkeypatch.setattr(activation_fit, "FOLDER", tmp_path)
    (tmp_path / "activations.json").write_text('{"fits": {}}', "utf-8")
    rows = activation_fit.fit("softplus", 2, None, starts=2, seed=0)
    error = activation_fit.largest_error("softplus", rows, None)
    activation_fit.store("softplus", rows, error, None)
    fit = json.loads((tmp_path / "activations.json").read_text("utf-8"))["fits"]["softplus"]["2"]
    x, total = points().clamp(-500, 500), 0
    for b, c, a, d in zip(fit["b"], fit["c"], fit["a"], fit["d"], strict=True):
        total = total + torch.sigmoid(b * x + c) * (a * x + d)
    worst = float((total - torch.log1p(torch.exp(-x.abs())) - x.clamp_min(0)).abs().max())
    assert 0.97 * error <= worst <= error < 0.1
    with pytest.raises(ValueError, match="'tanh' does not tend to 0 on the left"):
        activation_fit.fit("tanh", 2, None, starts=1, seed=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: head_sum("solu"), "'solu' is not supported. Heads can compute"),
        (lambda: head_sum("gelu", 0), "1 to 8 heads, not heads_per_neuron=0"),
        (lambda: gate_sum("silu", math.inf, 8), "up to 500, and this one can meet inf"),
        (lambda: gate_sum("silu", 8.0, 1), "2 to 32 heads, not heads_per_neuron=1"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError, match=message):
        call()
