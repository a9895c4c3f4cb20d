"""Norms that leave the bias token alone, and masks; the register of claims checks the constructions of the paper."""

import math

import pytest
import torch

from circuitkit_book.theorems import (
    centred_with_gain,
    direct_sum,
    layer_norm,
    masked_softmax,
    norm_of_first,
    rms_norm,
    rms_with_gain,
)


def test_a_row_without_a_source_is_refused():
    with pytest.raises(ValueError, match=r"The rows \[1\] of the mask are zero"):
        masked_softmax(torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


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
