"""Tiny models with every parameter drawn at random."""

import pytest

from tests.support import tiny_models

SIZES = {
    "d_model": 14,
    "d_head": 5,
    "n_layers": 3,
    "n_ctx": 16,
    "n_heads": 2,
    "d_vocab": 23,
    "d_mlp": 11,
}


def _boot(**changes):
    return tiny_models.boot(size=0.5, **SIZES | changes).requires_grad_(False)


@pytest.fixture(scope="session")
def boot():
    return _boot


@pytest.fixture(scope="session")
def plain():
    """Three layers of attention, biases but no norms."""
    return _boot()
