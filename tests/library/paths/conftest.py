"""Tiny models with every parameter drawn at random, biases and gains included."""

import pytest
import torch

from tests.support import tiny_models

SIZES = {
    "d_model": 24,
    "d_head": 5,
    "n_layers": 2,
    "n_ctx": 13,
    "n_heads": 3,
    "d_vocab": 37,
    "d_mlp": 29,
}


@pytest.fixture(scope="session")
def boot():
    """Models with an unembedding bias, as folding a norm would fill it."""

    def make(**changes):
        return tiny_models.boot(unembedding_bias=True, **SIZES | changes)

    return make


@pytest.fixture(scope="session")
def plain(boot):
    """Two layers, attention only, no norm, no biases."""
    return boot(bias=False)


@pytest.fixture(scope="session")
def with_norm(boot):
    """Two layers with LayerNorm, MLPs and every bias non-zero."""
    return boot(attn_only=False, normalization_type="LN")


@pytest.fixture(scope="session")
def tokens():
    return torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(3))
