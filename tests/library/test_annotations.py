"""Every annotation of the library is checked while `make weekly-library` runs: `--jaxtyping-packages`."""

import pytest
import torch
from jaxtyping import TypeCheckError

from circuitkit import rows


@pytest.mark.weekly
def test_functions_that_no_notebook_calls_refuse_a_tensor_of_the_wrong_dtype():
    with pytest.raises(TypeCheckError):
        rows.earlier_occurrences(torch.ones(2, 3))
    rows.require_two_positions(rows.Rows.of(torch.tensor([[1, 2]])))
