"""Tiny native models with every parameter drawn at random, and seeded tensors."""

import pytest
import torch

from tests.support import tiny_models

SIZES = {
    "d_model": 12,
    "d_head": 5,
    "n_layers": 2,
    "n_ctx": 13,
    "n_heads": 3,
    "d_vocab": 37,
    "d_mlp": 19,
}
USUAL = {"attn_only": False, "normalization_type": "LN", "init_weights": True}


def _native(dtype=torch.float64, seed=0, **changes):
    return tiny_models.boot(dtype, seed, **SIZES | USUAL | changes)


@pytest.fixture(scope="session")
def native():
    return _native


@pytest.fixture(scope="session")
def draw():
    """`draw(seed, 3, 5)`: a standard normal float64 tensor."""

    def _draw(seed, *shape, dtype=torch.float64):
        return torch.randn(
            *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        ).to(dtype)

    return _draw
