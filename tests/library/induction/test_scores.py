"""Head scores and losses of models for which they are known; the table of tools compares them with loops."""

import math

import pytest
import torch

from circuitkit.ablation import run
from circuitkit.induction import Repeated, induction_loss, repeated_tokens, scores
from circuitkit_book.induction_by_hand import build_induction_model


def test_handmade_heads_score_one_for_what_they_were_made_for():
    table = scores(build_induction_model(13, 26))
    assert table["L0H0", "previous token"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "prefix matching"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "copying"] == pytest.approx(1, abs=1e-5)
    table = scores(build_induction_model(13, 26, method="pointer"))
    assert table["L0H0", "duplicate token"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "prefix matching"] == pytest.approx(1, abs=1e-6)


def test_a_head_that_writes_nothing_has_the_copying_score_zero(boot):
    model = boot(n_layers=1)
    model.blocks[0].attn.o.weight.data.zero_()
    assert scores(model).select(behaviour="copying").values.tolist() == [0.0, 0.0, 0.0]


def test_scores_of_a_model_with_cuts_are_those_of_its_cut_patterns(boot):
    model = boot(n_layers=3)
    rows = torch.tensor([[3, 7, 1, 3, 7, 1], [5, 5, 8, 5, 9, 8]])
    cuts = ["L0H1", "L1H0->L2H1.K"]
    table = scores(model, rows, without=cuts)
    steps = run(model, rows, without=cuts).pattern("L2H1").diagonal(-1, -2, -1)
    assert table["L2H1", "previous token"] == pytest.approx(float(steps.mean()), abs=1e-9)
    whole = scores(model, rows)
    assert abs(table["L2H1", "previous token"] - whole["L2H1", "previous token"]) > 1e-6


def test_default_rows_fit_a_small_vocabulary(boot):
    model = boot(d_vocab=3, n_layers=1)
    assert torch.equal(scores(model).values, scores(model, repeated_tokens(3, 3)).values)


def test_rows_without_a_recurring_token_are_refused(plain):
    with pytest.raises(ValueError, match=r"No token recurs.*repeated_tokens"):
        scores(plain, torch.tensor([[1, 2, 3, 4]]))


def test_the_loss_of_a_certain_right_answer_by_hand():
    """A right answer has logit 20 and eleven others 0."""
    assert induction_loss(build_induction_model(12, 24)).second == pytest.approx(
        math.log(1 + 11 * math.exp(-20)), abs=1e-6
    )


def test_rows_that_do_not_fit_are_refused(plain):
    tokens = torch.zeros(1, 9, dtype=torch.long)
    with pytest.raises(ValueError, match="same 5 tokens from position 0 and from position 5 on"):
        induction_loss(plain, Repeated(tokens, 5, 0))
