"""Losses on the first and second pass."""

import math

import pytest
import torch

from circuitkit.handmade import build_induction_model
from circuitkit.induction import (
    Repeated,
    induction_loss,
)


def test_the_loss_of_a_certain_right_answer_by_hand():
    """A right answer has logit 20 and eleven others 0."""
    assert induction_loss(build_induction_model(12, 24)).second == pytest.approx(
        math.log(1 + 11 * math.exp(-20)), abs=1e-6
    )


def test_rows_that_do_not_fit_are_refused(plain):
    tokens = torch.zeros(1, 9, dtype=torch.long)
    with pytest.raises(TypeError, match="rows to be a Repeated or None"):
        induction_loss(plain, tokens)
    with pytest.raises(ValueError, match="same 5 tokens from position 0 and from position 5 on"):
        induction_loss(plain, Repeated(tokens, 5, 0))
