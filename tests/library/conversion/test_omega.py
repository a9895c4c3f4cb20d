"""The window of Omega; the register of claims compares the constructions with the formulas of the post."""

import math
import warnings

import pytest
import torch

from circuitkit_book.omega import omega_mlp, omega_window


@pytest.fixture
def parts(draw):
    shapes = [(5, 7), (7, 11), (11, 7), (11,), (7,)]
    return [draw(i, *shape) for i, shape in enumerate(shapes)]


def test_the_window_and_its_warning(parts):
    _, W_in, W_out, *_ = parts
    with pytest.warns(
        UserWarning,
        match=r"omega=2 lies outside \[.*\] for 20 positions in torch.float64: other tokens",
    ):
        omega_mlp(W_in, W_out, n_ctx=20, omega=2.0)
    with pytest.warns(UserWarning, match="rounded too coarsely"):
        omega_mlp(W_in, W_out, n_ctx=20, omega=1000.0)  # the post's choice
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        omega_mlp(W_in, W_out, n_ctx=20, omega=25.0)
    low, high = omega_window(21, torch.float64)
    assert low < 20
    assert low == pytest.approx(0.5 * math.log(21 / (16 * 2**-52)))
    assert high == 64.0


def test_a_sequence_longer_than_the_construction(parts):
    X, W_in, W_out, *_ = parts
    with pytest.raises(
        ValueError, match="There are 5 tokens, and this layer takes 4.*larger n_ctx"
    ):
        omega_mlp(W_in, W_out, n_ctx=4)(X)
