"""Every annotation of the library is checked while `make weekly-library` runs: `--jaxtyping-packages`."""

import pytest
import torch
from jaxtyping import TypeCheckError

from circuitkit import _blocks


@pytest.mark.weekly
def test_private_functions_refuse_a_tensor_of_the_wrong_dtype():
    with pytest.raises(TypeCheckError):
        _blocks._bands(torch.ones(2, 3))
    assert _blocks._bands(torch.ones(2, 3, dtype=torch.bool))
