"""No privileged basis: what a rotation of the stream leaves as it is, and what a LayerNorm sees."""

import math

import pytest
import torch

from circuitkit.residual import decompose
from circuitkit_book.residual_stream import random_rotation, rotate_basis
from tests.support import zoo


@pytest.mark.parametrize("d", [1, 7])
def test_rotations_are_orthogonal_and_seeded(d, close):
    R = random_rotation(d, seed=0)
    close(R @ R.T, torch.eye(d))
    assert torch.equal(R, random_rotation(d, seed=0))
    if d > 1:
        assert not torch.equal(R, random_rotation(d, seed=1))


@pytest.mark.parametrize("length", [0.0, math.nan, math.inf])
def test_a_vector_without_a_direction_cannot_stay(length):
    with pytest.raises(ValueError, match="fix must be a direction that can stay as it is"):
        random_rotation(4, seed=0, fix=torch.full((4,), length))


@pytest.mark.parametrize(
    "settings",
    [
        {"attn_only": False},
        {"positional_embedding_type": "rotary", "n_key_value_heads": 1, "d_head": 4},
    ],
    ids=str,
)
def test_logits_stay_without_norms_and_parts_rotate(boot, tokens, close, settings):
    model, R = boot(**settings), random_rotation(24, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rotated = rotate_basis(model, R)
    close(rotated(tokens).detach(), model(tokens).detach(), 1e-10)
    parts, rotated_parts = decompose(model, tokens), decompose(rotated, tokens)
    assert parts.names == rotated_parts.names
    close(rotated_parts.values, parts.values @ R, 1e-10)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_rms_norm_knows_no_direction(boot, tokens, close):
    settings = {"gated_mlp": True, "act_fn": "silu", "normalization_type": "RMS"}
    model = boot(attn_only=False, **settings)
    rotated = rotate_basis(model, random_rotation(24, seed=0))
    # transformer-lens computes the norm in float32
    close(rotated(tokens).detach(), model(tokens).detach(), 1e-4)


def test_a_gate_without_a_bias_cannot_take_over_that_of_a_norm(boot):
    model = boot(attn_only=False, normalization_type="LN", gated_mlp=True, act_fn="silu")
    with pytest.raises(ValueError, match="has no bias that could hold the bias of blocks.0.ln2"):
        rotate_basis(model, random_rotation(24, seed=0))


def test_what_cannot_be_rotated(plain):
    with pytest.raises(ValueError, match=r"not orthogonal: R R\^T differs from the identity by \d"):
        rotate_basis(plain, 2 * random_rotation(24, seed=0))
    for model in (zoo.make("gpt2"), zoo.converted("native-mlp")):
        with pytest.raises(ValueError, match="needs a native model"):
            rotate_basis(model, random_rotation(model.cfg.d_model, seed=0))
