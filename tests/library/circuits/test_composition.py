"""Composition scores and virtual heads."""

import dataclasses
import math

import pytest
import torch

from circuitkit import heads_of
from circuitkit.circuits import (
    composition_baseline,
    composition_scores,
    random_heads,
)
from tests.support import zoo

CLOSE = {"rtol": 0, "atol": 1e-12}  # float64


def slow_score(early, late, kind):
    """One pair: matrices multiplied out, numbers squared one by one."""

    def size(matrix):
        return math.sqrt(sum(float(value) ** 2 for row in matrix for value in row))

    ov = early.W_V[0] @ early.W_O[0]
    qk = late.W_Q[0] @ late.W_K[0].T
    second = {"Q": qk, "K": qk.T, "V": late.W_V[0] @ late.W_O[0]}[kind]
    return size(ov @ second) / (size(ov) * size(second))


def double_heads(*sizes, **more):
    return random_heads(*sizes, **more).to(torch.float64)


def test_a_head_that_writes_nothing_scores_zero():
    early = random_heads(2, 17, 3)
    early = dataclasses.replace(early, W_O=early.W_O * torch.tensor([0.0, 1.0])[:, None, None])
    scores = composition_scores(early, random_heads(2, 17, 3, layer=1), "V").values
    assert (scores[0] == 0).all()
    assert (scores[1] > 0).all()


def test_heads_in_any_order_of_layers():
    heads = dataclasses.replace(double_heads(4, 17, 3), layers=(2, 0, 1, 0))
    scores = composition_scores(heads)
    for i, first in enumerate(heads):
        for j, second in enumerate(heads):
            value = scores.values[i, j].item()
            if heads.layers[i] < heads.layers[j]:
                assert value == pytest.approx(slow_score(first, second, "K"), abs=1e-12)
            else:
                assert math.isnan(value)
    swapped = composition_scores(heads[[2, 0, 3, 1]])
    expected = scores.values[[2, 0, 3, 1]][:, [2, 0, 3, 1]]
    torch.testing.assert_close(swapped.values, expected, equal_nan=True, **CLOSE)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_small_products_of_large_factors_survive_float32(kind):
    """Heads that write almost only where nobody reads: squares of the factors would lose it."""
    early, late = random_heads(3, 40, 6), random_heads(3, 40, 6, layer=1, seed=1)
    turn = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(2))).Q
    inside = (torch.arange(40) < 20).float()
    early = dataclasses.replace(early, W_O=early.W_O * (inside + 1e-4 * (1 - inside)) @ turn)
    outside = {
        name: turn.T @ (getattr(late, name) * (1 - inside)[:, None])
        for name in ("W_Q", "W_K", "W_V")
    }
    late = dataclasses.replace(late, **outside)
    scores = composition_scores(early, late, kind).values.double()
    exact = composition_scores(early.to(torch.float64), late.to(torch.float64), kind).values
    assert exact.max() < 1e-4
    # 6e-8 of the factors, over 1e-4
    torch.testing.assert_close(scores, exact, rtol=2e-2, atol=0)


def test_half_precision_and_mixed_dtypes():
    early, late = random_heads(2, 12, 4), random_heads(2, 12, 4, layer=1, seed=1)
    coarse = [heads.to(torch.bfloat16) for heads in (early, late)]
    expected = composition_scores(*(heads.to(torch.float32) for heads in coarse))
    scores = composition_scores(*coarse)
    assert scores.values.dtype == torch.float32
    assert torch.equal(scores.values, expected.values)
    mixed = composition_scores(early, late.to(torch.float64))
    assert mixed.values.dtype == torch.float64


def test_the_baseline_is_the_mean_of_unrelated_heads():
    early, late = random_heads(30, 48, 4, seed=5), random_heads(30, 48, 6, layer=1, seed=6)
    scores, baseline = composition_scores(early, late, "V"), composition_baseline(early, late)
    # a mean lies below the root mean square, which is 1 / sqrt(d_model)
    assert baseline == pytest.approx(1 / math.sqrt(48), rel=0.04)
    assert baseline == pytest.approx(scores.values.mean().item(), rel=0.02)
    above = composition_scores(early, late, "V", above_baseline=True)
    torch.testing.assert_close(above.values, scores.values - baseline)


def test_neuron_heads_compose_with_attention_heads_and_each_other():
    """Attention heads of layer 0, the neurons of its MLP, and the heads of layer 1, in this order."""
    model = zoo.converted("native-mlp")
    attention, neurons = heads_of(model), heads_of(model, ["L0N3", "L1N2"])
    scores = composition_scores(attention, neurons, "Q")
    W_OV = attention["L0H1"].OV.AB[0]
    query = neurons["L0N3.1"].W_Q[0, :-1]  # the last coordinate is the bias token's
    expected = (W_OV @ query).norm() / (W_OV.norm() * query.norm())
    assert scores["L0H1", "L0N3.1"] == pytest.approx(float(expected), abs=1e-12)
    assert math.isnan(scores["L1H1", "L0N3.1"])
    back = composition_scores(neurons, attention, "V")
    assert math.isnan(back["L0N3.1", "L0H1"])
    assert back["L0N3.1", "L1H1"] > 0
    assert composition_scores(neurons, side="Q")["L0N3.0", "L1N2.1"] > 0
    together = heads_of(model, ["L0H1", "L0N3"])
    mixed = composition_scores(together, side="Q")
    assert mixed["L0H1", "L0N3.1"] == pytest.approx(float(expected), abs=1e-12)


def test_arguments_that_would_give_a_wrong_score():
    early, late = random_heads(2, 8, 2), random_heads(2, 8, 2, layer=1)
    with pytest.raises(ValueError, match=r"layers \[1\] .*lower layers.*Swap"):
        composition_scores(late, early)
    with pytest.raises(ValueError, match="stream of 8 dimensions"):
        composition_scores(early, random_heads(1, 11, 2, layer=1))
    early_of_a, late_of_b = dataclasses.replace(early, of="A"), dataclasses.replace(late, of="B")
    with pytest.raises(ValueError, match="different models, A and B"):
        composition_scores(early_of_a, late_of_b)
    with pytest.raises(TypeError, match="Write side='K'"):
        composition_scores(early, "K")
