"""Attention heads as a native model: it computes what the heads compute, and reads back as they were."""

import dataclasses

import pytest
import torch

from circuitkit import heads_of, stack
from circuitkit.handmade import bridge_of
from circuitkit.heads import Rotary


def random(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def two_layers(draw):
    def make(**fields):
        first, second = (draw(3, 8, 4, layer=layer, seed=layer, **fields) for layer in range(2))
        return stack(first, second)

    return make


@pytest.mark.parametrize(
    "fields",
    [{}, {"bias": False}, {"mask": "full"}, {"scale": 3.0}, {"cap": 0.7}],
    ids=str,
)
def test_the_model_computes_what_its_heads_compute(two_layers, fields):
    heads, tokens = two_layers(**fields), torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    W_E, W_U, W_pos = random(1, 10, 8), random(2, 8, 11), random(3, 7, 8)
    model = bridge_of(heads, W_E, W_U, W_pos)
    stream = W_E[tokens] + W_pos[:5]
    for layer in range(2):
        stream = stream + heads[3 * layer : 3 * layer + 3].results(stream).sum(-3)
    torch.testing.assert_close(model(tokens), stream @ W_U, rtol=1e-10, atol=1e-10)
    assert (model.cfg.n_ctx, model.training) == (7, False)
    again = heads_of(model)
    torch.testing.assert_close(again.OV.AB, heads.OV.AB)
    torch.testing.assert_close(again.QK.AB / again.scale, heads.QK.AB / heads.scale)
    assert again.names == heads.names


def test_weights_are_copies_and_positions_may_be_missing(two_layers):
    heads, W_E, W_U = two_layers(), random(1, 10, 8), random(2, 8, 10)
    before = torch.get_rng_state()
    model = bridge_of(heads, W_E, W_U, n_ctx=4)
    assert torch.equal(torch.get_rng_state(), before)
    heads.W_Q.zero_()
    assert model.W_Q.any()
    assert not model.W_pos.any()


@pytest.mark.parametrize("place", range(4))
def test_weights_that_are_no_numbers_are_refused(two_layers, place):
    heads = two_layers()
    weights = [heads.W_V, random(1, 10, 8), random(2, 8, 10), random(3, 7, 8)]
    weights[place][..., 0] = torch.nan  # in place, because a new stack of heads would be refused
    with pytest.raises(ValueError, match="given to bridge_of, holds NaN or infinite"):
        bridge_of(heads, *weights[1:])


def test_heads_that_a_native_model_cannot_hold(two_layers):
    heads, W_E, W_U = two_layers(), random(1, 10, 8), random(2, 8, 10)
    with pytest.raises(ValueError, match="needs n_ctx, the number of positions, or W_pos"):
        bridge_of(heads, W_E, W_U)
    with pytest.raises(ValueError, match=r"have \[3, 2\] heads. Every layer needs the same"):
        bridge_of(heads[:5], W_E, W_U, n_ctx=4)
    rotary = Rotary(torch.tensor([[0, 1]]), torch.ones(1))
    for change in (
        {"turn": rotary, "positions": "rotary"},
        {"window": 2},
        {"mask": "self_or_first"},
        {"positions": "other"},
    ):
        with pytest.raises(ValueError, match="bridge_of takes heads that attend by QK alone"):
            bridge_of(dataclasses.replace(heads, **change), W_E, W_U, n_ctx=4)
