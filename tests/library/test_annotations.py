"""Every annotation of the library is checked while the tests run: `--jaxtyping-packages` in pyproject.toml."""

import pytest
import torch
from jaxtyping import TypeCheckError

from circuitkit import _blocks


def test_private_functions_refuse_a_tensor_of_the_wrong_dtype():
    with pytest.raises(TypeCheckError):
        _blocks._bands(torch.ones(2, 3))
    assert _blocks._bands(torch.ones(2, 3, dtype=torch.bool))
