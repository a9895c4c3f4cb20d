"""Tiny models whose parameters are all random, biases and gains included."""

import pytest
import torch

from tests.support import tiny_models

SIZES = {
    "d_model": 22,
    "d_head": 4,
    "n_layers": 2,
    "n_ctx": 11,
    "n_heads": 3,
    "d_vocab": 37,
    "d_mlp": 29,
}


@pytest.fixture(scope="session")
def boot():
    def make(**changes):
        return tiny_models.boot(**SIZES | changes)

    return make


@pytest.fixture(scope="session")
def plain(boot):
    return boot()


@pytest.fixture(scope="session")
def with_norm(boot):
    return boot(attn_only=False, normalization_type="LN")


@pytest.fixture(scope="session")
def tokens():
    return torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    """A random GPT-2 that was saved to a folder and loaded from there; float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    original = GPT2LMHeadModel(GPT2Config(**tiny_models.GPT2)).eval()
    return tiny_models.from_folder(tmp_path_factory.mktemp("gpt2"), original)


@pytest.fixture(scope="session")
def close():
    def compare(found, expected, tolerance=1e-12):
        expected = torch.as_tensor(expected, dtype=found.dtype)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)

    return compare
