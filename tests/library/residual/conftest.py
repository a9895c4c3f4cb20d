"""A GPT-2, and how two tensors are compared."""

import pytest
import torch

from tests.support import tiny_models


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
