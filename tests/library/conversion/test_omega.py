"""The post's Omega constructions: against loops, the window, the bound, what large and small Omega do.

`CIRCUITKIT_PROMISES=1000 pytest tests/library/conversion/test_omega.py` tries more layers against their bound.
"""

import math
import os
import statistics
import warnings

import pytest
import torch

from circuitkit.claims._constructions import mask_as_weights
from circuitkit.conversion import OmegaWarning, choose_omega, omega_mlp, omega_window


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
        error = (mlp(X) - reference(*parts)).abs().max()
        assert error <= mlp.error_bound(X)
        assert error < 1e-12
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


def test_the_middle_step_replaces_x_by_silu_and_the_last_clears_the_scratch(parts):
    X, W_in, W_out, b_in, b_out = parts
    mlp = omega_mlp(W_in, W_out, b_in, b_out, n_ctx=5)
    end = mlp.run(mlp.augment(X))
    assert end[:, 7:18].abs().max() < 1e-13
    assert torch.equal(end[:, 18:], mlp.augment(X)[:, 18:])  # positions are never written to


@pytest.mark.parametrize("form", ["three_layers", "one_layer"])
def test_a_row_without_its_position_code_is_wrong_and_the_others_are_not(form, parts):
    X, W_in, W_out, *_ = parts
    mlp = omega_mlp(W_in, W_out, n_ctx=5, form=form)
    stream = mlp.augment(X)
    assert torch.equal((mlp.run(stream) - stream)[:5, :7], mlp(X))
    code = stream[2].clone()
    stream[2, mlp.d_stream - 6 + 2] = 0  # the position code of token 2
    wrong = ((mlp.run(stream) - stream)[:5, :7] - mlp(X)).abs().amax(1)
    assert wrong[2] > 0.1
    assert wrong[[0, 1, 3, 4]].max() < 1e-9
    assert torch.equal(mlp.augment(X)[2], code)  # augment makes a new stream each time


def test_the_score_matrix_has_rank_n_plus_1(parts):
    _, W_in, W_out, *_ = parts
    mlp = omega_mlp(W_in, W_out, n_ctx=8)
    assert torch.linalg.matrix_rank(mlp.self_matrix()) == 9


def unwarned(W_in, W_out, b_in, b_out, omega, form, n_ctx):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OmegaWarning)
        return omega_mlp(W_in, W_out, b_in, b_out, n_ctx=n_ctx, omega=omega, form=form)


def family(seed, draw):
    """Layers of six families: plain, steep, cancelling, with an outlier, tiny, and at the bend."""
    n_pos, d, m = [(5, 7, 11), (1, 3, 2), (12, 16, 24)][seed % 3]
    shapes = [(n_pos, d), (d, m), (m, d), (m,), (d,)]
    x, W_in, W_out, b_in, b_out = (draw(5 * seed + i, *shape) for i, shape in enumerate(shapes))
    W_in, W_out, kind = W_in / d**0.5, W_out / m**0.5, seed // 3 % 6
    if kind == 1:
        W_in = W_in * 20
    if kind == 2:  # what a neuron reads cancels
        half = d // 2
        x[:, half : 2 * half], W_in[half : 2 * half], b_in = (
            -1.37 * x[:, :half],
            W_in[:half] / 1.37,
            b_in * 1e-3,
        )
        x = x * 50
    if kind == 3:
        x[:, 0] *= 300
    if kind == 4:
        W_in, b_in = W_in * 1e-4, b_in * 1e-4
    if kind == 5:
        b_in = -(x[0] @ W_in)
    return x, W_in, W_out, None if seed % 5 == 0 else b_in, None if seed % 7 == 0 else b_out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["three_layers", "one_layer"])
def test_no_layer_exceeds_its_bound(dtype, form, draw):
    exceeded, loose, many = [], [], max(108, int(os.environ.get("CIRCUITKIT_PROMISES", "0")))
    for seed in range(many):
        x, *weights = (None if part is None else part.to(dtype) for part in family(seed, draw))
        omega = (2.0, 5.0, 8.0, 12.0, 100.0, 1000.0)[seed // 18 % 6]
        mlp = unwarned(*weights, omega, form, len(x) + seed % 3)
        X, W_in, W_out, b_in, b_out = (
            0 if part is None else part.double() for part in (x, *weights)
        )
        error, bound = (
            float((mlp(x).double() - reference(X, W_in, W_out, b_in, b_out)).abs().max()),
            mlp.error_bound(x),
        )
        assert math.isfinite(bound)
        exceeded += [seed] * (not error <= bound)
        loose += [bound / error] if error > 0 else []
    assert exceeded == []
    assert 2 < statistics.median(loose) < (50 if dtype in (torch.bfloat16, torch.float16) else 80)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("omega", [5.0, 12.0])
def test_the_bound_counts_what_cancels(dtype, omega, draw):
    x, W_in = 100 * draw(0, 3, 64), draw(1, 64, 8)
    x[:, 32:], W_in[32:] = -1.37 * x[:, :32], W_in[:32] / 1.37
    x, W_in, W_out = x.to(dtype), W_in.to(dtype), torch.eye(8, 64, dtype=dtype)
    mlp = unwarned(W_in, W_out, None, None, omega, "one_layer", 3)
    error = (
        (mlp(x).double() - reference(x.double(), W_in.double(), W_out.double(), 0, 0)).abs().max()
    )
    assert error <= mlp.error_bound(x)


def test_the_window_and_its_warning(parts):
    _, W_in, W_out, *_ = parts
    with pytest.warns(
        OmegaWarning,
        match=r"omega=2 lies outside \[.*\] for 20 positions in torch.float64: other tokens",
    ):
        omega_mlp(W_in, W_out, n_ctx=20, omega=2.0)
    with pytest.warns(OmegaWarning, match="rounded too coarsely"):
        omega_mlp(W_in, W_out, n_ctx=20, omega=1000.0)  # the post's choice
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        omega_mlp(W_in, W_out, n_ctx=20, omega=25.0)
    low, high = omega_window(21, torch.float64)
    assert low == choose_omega(21, torch.float64) < 20
    assert low == pytest.approx(0.5 * math.log(21 / (16 * 2**-52)))
    assert high == 64.0


def test_in_float32_the_posts_omega_loses_digits_and_in_bfloat16_everything(draw):
    X, eye = draw(0, 20, 30), torch.eye(30)
    exact = X * torch.sigmoid(X)

    def error(omega, dtype):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OmegaWarning)
            mlp = omega_mlp(eye.to(dtype), eye.to(dtype), n_ctx=20, omega=omega, form="one_layer")
        rounded = X.to(dtype)
        return (
            (mlp(rounded).double() - rounded.double() * torch.sigmoid(rounded.double())).abs().max()
        )

    assert error(20.0, torch.float64) < 3e-15
    assert error(20.0, torch.float32) < 2e-6 < 1e-5 < error(1000.0, torch.float32)
    assert error(1000.0, torch.bfloat16) > 1.0
    assert torch.isnan(error(40000.0, torch.float16))
    assert exact.abs().max() > 1


def test_the_bound_has_two_walls_and_knows_overflow(parts):
    X, *weights = (part.float() for part in parts)
    at = {
        omega: unwarned(*weights, omega, "one_layer", 5).error_bound(X)
        for omega in (2.0, 9.0, 1000.0, 1e9)
    }
    assert at[2.0] > at[9.0] < at[1000.0] < at[1e9]
    X, *weights = (part.half() for part in parts)
    assert unwarned(*weights, 4e4, "one_layer", 5).error_bound(X) == math.inf


def test_the_bound_of_one_neuron_by_hand():
    # one token, one neuron, weights 1: the score 1 of the token is summed from 4 numbers, beside 2 Omega = 18 in the sums and
    # twice in what is stored; the weight has 12 roundings, the mean 20, what is read 4 and 1, the end 1 and three times itself
    mlp = unwarned(torch.ones(1, 1), torch.ones(1, 1), None, None, 9.0, "one_layer", 1)
    assert mlp.error_bound(torch.zeros(1, 1)) < 1e-36
    u, one, on = 2.0**-24, torch.ones(1, 1), 1 / (1 + math.exp(-1))
    dq = (4 * 19 + 1 + 2 * 18) * u
    wrote = (
        dq * on * (1 - on)
        + 12 * u * on
        + 2 * math.exp(-18)
        + 20 * u * (on + math.exp(-18))
        + (4 + 1) * u * on
    )
    assert mlp.error_bound(one) == pytest.approx(wrote + 1.01 * u * (1 + 3 * on), rel=1e-3)


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"form": "two"}, r"form='two'; expected one of \['three_layers', 'one_layer'\]"),
        ({"omega": -1.0}, "expected a positive, finite number"),
        ({"omega": math.inf}, "expected a positive, finite number"),
        ({"tolerance": 1e-18}, "no omega gives tolerance 1e-18 in torch.float64 with 6 positions"),
    ],
)
def test_messages(changes, message, parts):
    _, W_in, W_out, *_ = parts
    with pytest.raises(ValueError, match=message):
        omega_mlp(W_in, W_out, n_ctx=5, **changes)


def test_a_sequence_longer_than_the_construction(parts):
    X, W_in, W_out, *_ = parts
    with pytest.raises(
        ValueError, match="expected at most 4 positions.*build it again with a larger n_ctx"
    ):
        omega_mlp(W_in, W_out, n_ctx=4)(X)
