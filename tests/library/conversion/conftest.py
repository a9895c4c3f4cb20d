"""Tiny native models with every parameter drawn at random, seeded tensors, scalar activations."""

import math

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


@pytest.fixture(scope="session")
def scalar():
    """Activation functions of one number, written with `math`."""
    root = math.sqrt(2 / math.pi)
    return {
        "silu": lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0,
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
        "gelu_new": lambda x: 0.5 * x * (1 + math.tanh(root * (x + 0.044715 * x**3))),
        "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)) if x > -400 else 0.0,
    }
