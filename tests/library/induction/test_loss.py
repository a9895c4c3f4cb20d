"""Losses on the first and second pass, and the in-context score."""

import math

import numpy as np
import pytest
import torch

from circuitkit.handmade import build_induction_model
from circuitkit.induction import (
    Repeated,
    induction_loss,
    losses_by_position,
    repeated_tokens,
)


def slow_losses(slow_model, row):
    logits = slow_model.run(row)[0]
    return [
        math.log(sum(math.exp(v) for v in at)) - at[after]
        for at, after in zip(logits, row[1:], strict=False)
    ]


@pytest.mark.parametrize("bos", [None, 0])
def test_losses_and_accuracy_against_loops(with_norm, slow, bos):
    rows = repeated_tokens(23, 5, batch=3, bos=bos)
    all_losses = [slow_losses(slow(with_norm), row) for row in rows.tokens.tolist()]
    opening = int(bos is not None)
    # The loss at index t is about the token at t + 1; both passes leave out their first token.
    first = [row[t - 1] for row in all_losses for t in range(opening + 1, opening + 5)]
    second = [row[t - 1] for row in all_losses for t in range(opening + 6, opening + 10)]
    found = induction_loss(with_norm, rows)
    assert found.first == pytest.approx(np.mean(first), abs=1e-9)
    assert found.second == pytest.approx(np.mean(second), abs=1e-9)
    assert found.difference == pytest.approx(np.mean(second) - np.mean(first), abs=1e-9)
    right = []
    for row in rows.tokens.tolist():
        logits = slow(with_norm).run(row)[0]
        right += [logits[t - 1].argmax() == row[t] for t in range(opening + 6, opening + 10)]
    assert found.accuracy == pytest.approx(np.mean(right), abs=1e-6)
    assert losses_by_position(with_norm, rows.tokens).numpy() == pytest.approx(
        np.array(all_losses), abs=1e-9
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
