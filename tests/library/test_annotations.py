"""Every annotation of the library is checked while `make weekly-library` runs: `--jaxtyping-packages`."""

import pytest
import torch
from jaxtyping import TypeCheckError

from circuitkit import rows


@pytest.mark.weekly
def test_functions_without_a_check_of_their_own_refuse_a_tensor_of_the_wrong_dtype():
    with pytest.raises(TypeCheckError):
        rows.token_losses(torch.ones(2, 3, 5), torch.ones(2, 3))
    rows.require_two_positions(rows.Rows.of(torch.tensor([[1, 2]])))
