"""The post's Omega constructions: against the formula and by hand, the window, large and small Omega."""

import math
import warnings

import pytest
import torch

from circuitkit_book.omega import omega_mlp, omega_window


def reference(X, W_in, W_out, b_in, b_out):
    pre = X @ W_in + b_in
    return (pre / (1 + torch.exp(-pre))) @ W_out + b_out


@pytest.fixture
def parts(draw):
    shapes = [(5, 7), (7, 11), (11, 7), (11,), (7,)]
    return [draw(i, *shape) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("form", ["three_layers", "one_layer"])
def test_both_forms_compute_the_mlp(form, parts):
    X, W_in, W_out, b_in, b_out = parts
    for n_ctx in (5, 8):
        mlp = omega_mlp(W_in, W_out, b_in, b_out, n_ctx=n_ctx, form=form)
        # the leak at the chosen Omega is 16 units, of numbers up to about 100
        assert (mlp(X) - reference(*parts)).abs().max() < 1e-12
        assert mlp.d_stream == 7 + (11 if form == "three_layers" else 0) + n_ctx + 1
    assert torch.allclose(mlp(torch.stack([X, 2 * X]))[1], mlp(2 * X))
    assert mlp.n_heads == (13 if form == "three_layers" else 12)


def test_the_scores_are_the_posts_by_hand():
    # one unit reading coordinate 0, two tokens and the bias token: row j is (-x, ..., 2 Omega - x at j, ..., 2 Omega)
    mlp = omega_mlp(torch.eye(1), torch.eye(1), n_ctx=2, omega=9.0, form="one_layer")
    stream = mlp.augment(torch.tensor([[0.5], [3.0]]))
    assert stream.tolist() == [[0.5, 1, 0, 0], [3.0, 0, 1, 0], [0, 0, 0, 1]]
    read = torch.tensor([1.0, 0, 0, 0])
    scores = stream @ mlp.entry_matrix(read) @ stream.T
    assert scores.tolist() == [[17.5, -0.5, 18.0], [-3.0, 15.0, 18.0], [0.0, 0.0, 18.0]]
    row = scores[0].softmax(
        -1
    )  # the post's typo: itself 1 - sigmoid(x), the bias sigmoid(x), not sigmoid(-x)
    assert row[2] == pytest.approx(1 / (1 + math.exp(-0.5)), abs=1e-6)


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
