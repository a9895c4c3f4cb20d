"""Activations as sums of head terms: certified errors, targets, asymptotes, messages."""

import math

import pytest
import torch

from circuitkit.conversion import activation_error, generalized_silu, head_sum
from circuitkit.conversion._head_sum import HeadSum

TARGETS = {1: 1.4e-2, 2: 5.4e-3, 3: 2.1e-3, 4: 4.6e-4, 5: 5e-5, 8: 1e-5}


def slow(term_sum, x):
    total = 0.0
    for b, c, a, d in zip(term_sum.b, term_sum.c, term_sum.a, term_sum.d, strict=True):
        total += (a * x + d) / (1 + math.exp(-(b * x + c)))
    return total


def points():
    """Dense where the functions bend, sparse far out, and never a grid the fit was made on."""
    return [i * 0.00137 - 9 for i in range(13200)] + [
        s * 1.3**i for i in range(9, 24) for s in (-1, 1)
    ]


@pytest.mark.parametrize("name", ["gelu", "gelu_new"])
@pytest.mark.parametrize("k", range(1, 9))
def test_the_promised_error_holds_and_is_not_a_loose_one(name, k, scalar):
    terms = head_sum(name, heads_per_neuron=k)
    worst = max(
        abs(slow(terms, x) - scalar[name](x)) for x in points() if abs(x) * max(terms.b) < 700
    )
    assert len(terms) == k
    assert 0.97 * terms.error <= worst <= terms.error


@pytest.mark.parametrize("k", TARGETS)
def test_gelu_reaches_the_targets(k):
    assert activation_error("gelu", k) <= TARGETS[k]


def test_more_heads_are_never_worse_and_the_paper_is_beaten_by_one():
    for name in ("gelu", "gelu_new"):
        errors = [activation_error(name, k) for k in range(1, 9)]
        assert errors == sorted(errors, reverse=True)
        assert errors[0] < 0.0203


@pytest.mark.parametrize("name", ["gelu", "gelu_new"])
@pytest.mark.parametrize("k", range(1, 9))
def test_fits_have_the_right_asymptotes_and_small_coefficients(name, k):
    terms = head_sum(name, heads_per_neuron=k)
    assert min(terms.b) > 0  # hence 0 on the far left
    assert abs(sum(terms.a) - 1) < 1e-12  # hence x on the far right,
    assert abs(sum(terms.d)) < 1e-12  # with nothing added
    assert sum(map(abs, terms.a)) <= 3


def test_a_sum_computed_by_hand():
    terms = HeadSum("mine", (2.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 4.0), 0.0)
    x = torch.tensor([0.0, 0.5 * math.log(3.0)])
    # at 0: 0 + 4/2; at ln(3)/2: sigmoid(ln 3) = 3/4
    assert torch.allclose(terms(x), torch.tensor([2.0, 0.75 * 0.5 * math.log(3.0) + 2.0]))


@pytest.mark.parametrize("name", ["silu", "relu", "gelu", "gelu_new", "quick_gelu"])
@pytest.mark.parametrize("gradient", [True, False])
def test_both_code_paths_follow_the_slow_sum(name, gradient, draw):
    terms = head_sum(name, heads_per_neuron=None if name != "gelu" else 4)
    x = (draw(0, 3, 7) * 3).requires_grad_(gradient)
    # b is large for relu: its own exp would overflow, so the reference is written with tanh
    reference = sum(
        (0.5 + 0.5 * torch.tanh((b * x.detach() + c) / 2)) * (a * x.detach() + d)
        for b, c, a, d in terms.terms
    )
    assert torch.allclose(terms(x), reference, atol=1e-13, rtol=0)


def test_the_pieces_of_the_fast_path_fit_together(draw):
    terms, x = head_sum("gelu", heads_per_neuron=3), draw(1, 2**17 + 5, dtype=torch.float32)
    kept = x.clone()
    whole = sum(torch.sigmoid(b * x + c) * (a * x + d) for b, c, a, d in terms.terms)
    assert torch.allclose(terms(x), whole, atol=1e-6)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("s", [1.0, 10.0, 100.0])
def test_relu_is_wrong_by_what_the_paper_says(s, scalar):
    terms = head_sum("relu", sharpness=s)
    worst = max(abs(slow(terms, x / 1000) - scalar["relu"](x / 1000)) for x in range(-3000, 3000))
    assert terms.error == pytest.approx(0.2785 / s, rel=1e-3)
    assert 0.99 * terms.error <= worst <= terms.error


@pytest.mark.parametrize("wanted", [1e-2, 1e-3, 1e-4, 2e-5, 2e-6])
@pytest.mark.parametrize("name", ["silu", "relu", "gelu", "gelu_new"])
def test_max_error_takes_the_fewest_heads_within_it(name, wanted):
    terms = head_sum(name, max_error=wanted)
    assert terms.error <= wanted
    if name.startswith("gelu") and len(terms) > 1:
        assert activation_error(name, len(terms) - 1) > wanted


def test_generalized_silu_and_quick_gelu():
    x = torch.linspace(-5, 5, 11, dtype=torch.float64)
    expected = 3.0 * torch.nn.functional.silu(0.5 * x)
    assert torch.allclose(generalized_silu(3.0, 0.5)(x), expected, atol=1e-15)
    assert activation_error("quick_gelu") == activation_error("silu", 1) == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation": "solu"}, r"activation='solu'; expected one of \['silu', 'relu', 'gelu'"),
        (
            {"activation": "gelu", "heads_per_neuron": 2, "max_error": 0.1},
            "not both: each decides the other",
        ),
        (
            {"activation": "gelu", "heads_per_neuron": 9},
            "heads_per_neuron=9; expected an integer from 1 to 8",
        ),
        (
            {"activation": "gelu", "heads_per_neuron": True},
            "heads_per_neuron=True; expected an integer from 1 to 8",
        ),
        (
            {"activation": "gelu", "max_error": 1e-9},
            r"max_error=1e-09 cannot be met for 'gelu': 8 heads .* reach",
        ),
        ({"activation": "gelu", "max_error": -1.0}, "expected a finite number, 0 or more"),
        ({"activation": "gelu", "max_error": math.nan}, "expected a finite number, 0 or more"),
        ({"activation": "gelu", "sharpness": 3.0}, "expected no sharpness, a knob of relu only"),
        ({"activation": "relu", "max_error": 0.0}, "never zero"),
        (
            {"activation": "relu", "max_error": 0.1, "sharpness": 2.0},
            "either, not both: the error is 0.2785 / sharpness",
        ),
        ({"activation": "relu", "sharpness": -1.0}, "positive, finite number"),
    ],
)
def test_messages(arguments, message):
    with pytest.raises(ValueError, match=message):
        head_sum(**arguments)
