"""One norm: by hand, against torch, frozen, folded and bounded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit.anatomy import Norm


def close(a, b):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=1e-12, rtol=1e-12)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_by_hand():
    x = torch.tensor([[3.0, 1.0, -1.0, -3.0]], dtype=torch.float64)  # mean 0, mean square 5
    gain, bias = torch.tensor([[1.0, 2.0, 1.0, 1.0], [0.0, 0.0, 5.0, 0.0]], dtype=torch.float64)
    close(Norm(gain, bias, eps=4.0)(x), [[1.0, 2 / 3, 5 - 1 / 3, -1.0]])
    close(Norm(None, None, eps=4.0)(x + 7), [[1.0, 1 / 3, -1 / 3, -1.0]])
    close(Norm(None, None, eps=11.0, centre=False)(x + 0), [[0.75, 0.25, -0.25, -0.75]])


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(2, 7), st.booleans(), st.sampled_from([1e-5, 0.3]))
def test_against_torch(seed, size, centre, eps):
    x, gain, bias = (
        3 * draw(5, size, seed=seed),
        draw(size, seed=seed + 1),
        draw(size, seed=seed + 2),
    )
    norm = Norm(gain, bias if centre else None, eps, centre)
    if centre:
        close(norm(x), torch.nn.functional.layer_norm(x, (size,), gain, bias, eps))
    else:
        close(norm(x), torch.nn.functional.rms_norm(x, (size,), gain, eps))


@settings(deadline=None)
@given(st.integers(0, 99), st.booleans())
def test_frozen_it_is_affine_and_folded_a_matrix(seed, centre):
    x, W, b = draw(4, 6, seed=seed), draw(6, 3, seed=seed + 1), draw(3, seed=seed + 4)
    norm = Norm(draw(6, seed=seed + 2), draw(6, seed=seed + 3), 1e-3, centre)
    frozen = norm.freeze(x)
    close(frozen(x), norm(x))
    shares = draw(5, 4, 6, seed=seed + 5)
    close(frozen.linear(shares).sum(0), frozen.linear(shares.sum(0)))
    close(frozen(shares.sum(0)) - frozen.linear(shares.sum(0)), norm.bias.expand(4, 6))
    close(frozen.linear(shares) @ W, shares @ norm.fold(W) / frozen.scale)
    close(frozen.at(slice(1, 2))(x[1:2]), frozen(x)[1:2])
    assert (
        (norm(100 * draw(200, 6, seed=seed + 6)) @ W + b).abs() <= norm.bound(W, b) + 1e-9
    ).all()


def test_the_bound_is_reached():
    norm, W = Norm(torch.ones(4, dtype=torch.float64), None, 0.0, centre=False), draw(4, 2)
    along = W.T / W.norm(dim=0)[:, None]
    close((norm(along) @ W).diagonal(), norm.bound(W))


def test_norms_of_heads():
    gain, x = draw(3, 1, 4), draw(2, 3, 5, 4)
    alone = Norm(gain, None, 1e-6, centre=False)
    for head in range(3):
        close(
            alone(x)[:, head], torch.nn.functional.rms_norm(x[:, head], (4,), gain[head, 0], 1e-6)
        )
        close(alone.freeze(x[0]).only(head)(x[0, [head]]), alone(x)[0, [head]])
    close(alone.take([2, 0]).gain, gain[[2, 0]])
    close(alone.join([alone, alone]).gain, torch.cat([gain, gain]))
    across = Norm(gain, None, 1e-6, centre=False, across=True)
    flat = x.transpose(1, 2).flatten(2)
    close(
        across(x).transpose(1, 2).flatten(2),
        torch.nn.functional.rms_norm(flat, (12,), gain.flatten(), 1e-6),
    )
    close(across.freeze(x[0]).only(1)(x[0, [1]]), across(x)[0, [1]])
    with pytest.raises(
        ValueError, match="a norm over 3 heads together got 2; expected all heads of the layer"
    ):
        across(x[:, :2])
    with pytest.raises(ValueError, match="of different kinds; keep them apart"):
        alone.join([alone, Norm(gain, None, 1e-5, centre=False)])
    with pytest.raises(ValueError, match="of different kinds"):
        across.join([across, across])
