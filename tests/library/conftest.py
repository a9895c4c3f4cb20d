"""Tiny models with every parameter drawn at random, biases and gains included, for the tests of several packages."""

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


def _boot(**changes):
    return tiny_models.boot(**SIZES | changes)


@pytest.fixture(scope="session")
def boot():
    return _boot


@pytest.fixture(scope="session")
def plain():
    """Two layers, attention only, no norm, no biases."""
    return _boot(bias=False)


@pytest.fixture(scope="session")
def with_norm():
    """Two layers with LayerNorm, MLPs and every bias non-zero."""
    return _boot(attn_only=False, normalization_type="LN")


@pytest.fixture(scope="session")
def tokens():
    return torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(3))
