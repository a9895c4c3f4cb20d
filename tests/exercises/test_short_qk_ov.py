"""The short answers inside the pages of chapter 2: the right one passes, and a known mistake gets its hint."""

import pytest
import torch

import circuitkit as ck
from circuitkit import models
from circuitkit_book import exercises as ex

CASES = {
    "column_of_ash": (" Mrs", "ix", "You read a row"),
    "rank_of_ov": (32, 160, "which dimension is smallest?"),
    "row_of_he": (" hath", "hath", "Write it exactly as it is in the vocabulary"),
    "score_of_itself": (0.866, 86.6, "Give a share between 0 and 1"),
    "constant_head": ("L1H0", "L0H1", "You need a large one"),
    "odds_of_mind": (torch.tensor(5.0).exp(), 5.0, "The odds are its exponential"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_right_answer_passes_and_a_wrong_one_gets_a_hint(name):
    check = getattr(ex, f"check_{name}")
    right, wrong, hint = CASES[name]
    assert check(right).passed
    assert not check(wrong).passed
    assert hint in check(wrong).message
    assert "No answer yet." in check(None).message
    assert not check(None).done


def test_the_right_answers_are_those_of_the_model():
    model = ck.load_model("one-layer")
    W_E, W_U = model.W_E.detach(), model.W_U.detach()
    W_V, W_O = model.W_V[0, 1].detach(), model.W_O[0, 1].detach()
    table = W_E @ W_V @ W_O @ W_U
    table = table - table.mean(1, keepdim=True)
    best = table[:, model.to_single_token("ash")].argmax()
    assert ex.check_column_of_ash(model.tokenizer.decode([best])).passed

    frequent = models.corpus_statistics().unigram >= 1000
    scores = W_E @ model.W_Q[0, 1].detach() @ model.W_K[0, 1].detach().T @ W_E.T
    lower = scores.diagonal() < scores[:, frequent].mean(1)
    assert ex.check_score_of_itself(float(lower[frequent].double().mean())).passed
