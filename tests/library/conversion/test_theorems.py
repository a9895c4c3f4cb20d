"""The paper's constructions against its own formulas, its errata as failing statements, and norms repaired."""

import math

import pytest
import torch

from circuitkit.conversion import with_bias_token
from circuitkit_book.theorems import (
    centred_with_gain,
    direct_sum,
    layer_norm,
    mask_as_weights,
    masked_softmax,
    norm_of_first,
    remark3,
    rms_norm,
    rms_with_gain,
    theorem2,
    theorem6,
    theorem7,
)


def summed(heads, x):
    return sum(head(x) for head in heads)


def silu(x):
    return x * torch.sigmoid(x)


@pytest.mark.parametrize(("a1", "a2"), [(1.0, 1.0), (1 / 1.702, 1.702), (-0.5, 3.0)])
def test_theorem_2(a1, a2, draw):
    X, V1, V2 = draw(0, 5, 7), draw(1, 7, 11), draw(2, 11, 7)
    heads = theorem2(V1, V2, 5, a1, a2)
    assert len(heads) == 11
    assert heads[0].W_QK.shape == (8, 8)
    expected = direct_sum(a1 * silu(a2 * X @ V1) @ V2, 0.0)
    assert (summed(heads, direct_sum(X, 1.0)) - expected).abs().max() < 1e-13


def test_theorem_2_pattern_by_hand():
    x = math.log(3.0)  # sigmoid(x) = 3/4
    head = theorem2(torch.tensor([[1.0]]), torch.tensor([[1.0]]), 1)[0]
    pattern = head.pattern(torch.tensor([[x, 0.0], [0.0, 1.0]]))
    assert torch.allclose(pattern, torch.tensor([[0.75, 0.25], [0.0, 1.0]]))


def test_theorem_6_is_any_linear_map_whatever_the_scores(draw):
    X, W = draw(0, 5, 7), draw(1, 7, 7)
    head = theorem6(W, 5)
    assert torch.equal(head(X), X @ W)
    assert torch.allclose(type(head)(draw(2, 7, 7), W, head.mask)(X), X @ W)


def test_theorem_7_entry_by_entry_and_through_the_skip(draw):
    X = draw(0, 3, 5)
    wide = direct_sum(X, 1.0)
    assert len(theorem7(5, 3, residual=True)) == 6
    expected = direct_sum(silu(2 * X) * 3, 0.0)
    assert torch.allclose(summed(theorem7(5, 3, 3.0, 2.0, like=X), wide), expected, atol=1e-14)
    through = wide + summed(theorem7(5, 3, residual=True, like=X), wide)
    assert torch.allclose(through, direct_sum(silu(X), 1.0), atol=1e-14)


def test_remark_3_in_the_librarys_convention_not_the_papers(draw):
    X, V1, V2 = draw(0, 5, 7), draw(1, 7, 11), draw(2, 11, 7)
    heads = remark3(V1, V2, 0.5, 2.0)
    expected = 0.5 * silu(2 * X @ V1) @ V2
    assert torch.allclose(heads.results(with_bias_token(X)).sum(0)[1:, :-1], expected, atol=1e-13)
    assert torch.equal(heads.W_Q, heads.W_V)
    assert (heads.W_K[:1] == heads.W_K).all()  # shared: two vectors are left to store per neuron
    papers = heads.W_K * math.sqrt(8)  # its W_K, whose sqrt(D+1) a library never divides out again
    from dataclasses import replace

    wrong = replace(heads, W_K=papers).results(with_bias_token(X)).sum(0)[1:, :-1]
    assert not torch.allclose(wrong, expected, atol=0.1)


def test_a_row_without_a_source_is_refused():
    with pytest.raises(ValueError, match=r"The rows \[1\] of the mask are zero"):
        masked_softmax(torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_theorem_4s_step_is_false_for_layer_norm(draw):
    X = draw(0, 20, 16)
    wrong = layer_norm(direct_sum(X, 1.0))
    bias_row = torch.tensor(
        [-1 / 4] * 16 + [4.0]
    ).double()  # (-1/sqrt D, ..., sqrt D), not (0, ..., 1)
    assert torch.allclose(wrong[-1], bias_row, atol=1e-12)
    assert (
        wrong[:-1, -1].abs().max() > 0.1
    )  # the mean leaks into the bias coordinate of ordinary tokens
    assert (wrong[:-1, :-1] - layer_norm(X)).abs().max() > 0.01


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.1])
def test_the_repairs_are_exact(eps, draw):
    X = draw(0, 20, 16)
    both = direct_sum(X, 1.0)
    for norm in (lambda x: layer_norm(x, eps), lambda x: rms_norm(x, eps)):
        assert torch.allclose(norm_of_first(norm)(both), direct_sum(norm(X), 1.0), atol=1e-13)
    assert torch.allclose(
        rms_with_gain(16, eps)(both), direct_sum(rms_norm(X, eps), 1.0), atol=1e-13
    )
    centred = torch.block_diag(X - X.mean(-1, keepdim=True), torch.tensor([[1.0, -1.0]]).double())
    expected = torch.block_diag(layer_norm(X, eps), torch.tensor([[1.0, -1.0]]).double())
    assert torch.allclose(centred_with_gain(16, eps)(centred), expected, atol=1e-13)


def test_norms_by_hand():
    assert torch.allclose(layer_norm(torch.tensor([[1.0, 3.0]])), torch.tensor([[-1.0, 1.0]]))
    assert torch.allclose(
        rms_norm(torch.tensor([[3.0, 4.0]])), torch.tensor([[3.0, 4.0]]) / math.sqrt(12.5)
    )


@pytest.mark.parametrize("omega", [5.0, 20.0, 40.0])
def test_any_mask_can_be_written_into_weights(omega, draw):
    mask = torch.rand(6, 6, generator=torch.Generator().manual_seed(1)) > 0.5
    mask.fill_diagonal_(True)
    scores = draw(1, 6, 6)
    W_Q, W_K = mask_as_weights(mask, omega)
    exact = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    spread = float(scores.max() - scores.min())
    error = ((scores + (W_Q @ W_K.T).double()).softmax(-1) - exact).abs().sum(-1).max()
    assert error <= 2 * 6 * math.exp(spread - omega) + 1e-15
