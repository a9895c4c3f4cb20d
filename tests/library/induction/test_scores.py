"""Head scores and losses of models for which they are known; the table of tools compares them with loops."""

import math

import pytest
import torch

from circuitkit.ablation import run
from circuitkit.induction import Repeated, induction_loss, repeated_tokens, scores
from circuitkit_book.induction_by_hand import build_induction_model
from tests.support.slow_cuts import weights_of
from tests.support.zoo import make

# where transformers keeps W_O, the final norm, and the unembedding
FAMILIES = {
    "gpt2": ("transformer.h.1.attn.c_proj", "transformer.ln_f", "transformer.wte"),
    "neox-parallel": (
        "gpt_neox.layers.1.attention.dense",
        "gpt_neox.final_layer_norm",
        "lm_head",
    ),
    "phi": ("model.layers.1.self_attn.dense", "model.final_layernorm", "lm_head"),
    "llama": ("model.layers.1.self_attn.o_proj", "model.norm", "lm_head"),
    "gemma2": ("model.layers.1.self_attn.o_proj", "model.norm", "lm_head"),
    "gemma3": ("model.layers.1.self_attn.o_proj", "model.norm", "lm_head"),
}


def test_handmade_heads_score_one_for_what_they_were_made_for():
    table = scores(build_induction_model(13, 26))
    assert table["L0H0", "previous token"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "prefix matching"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "copying in a run"] == pytest.approx(1, abs=1e-5)
    table = scores(build_induction_model(13, 26, method="pointer"))
    assert table["L0H0", "duplicate token"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "prefix matching"] == pytest.approx(1, abs=1e-6)


def test_a_head_that_writes_nothing_has_the_copying_score_zero(boot):
    model = boot(n_layers=1)
    model.blocks[0].attn.o.weight.data.zero_()
    assert scores(model).select(behaviour="copying in a run").values.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("family", FAMILIES)
def test_copying_has_all_of_a_norm_but_its_divisor(family):
    model, rows = make(family), torch.tensor([[3, 7, 1, 9, 3, 7, 1, 9], [5, 8, 2, 6, 5, 8, 2, 6]])
    weights, (out, last, words) = weights_of(model), FAMILIES[family]
    W_O, gain = weights[f"{out}.weight"], weights[f"{last}.weight"]
    is_gemma, is_centred = family.startswith("gemma"), f"{last}.bias" in weights
    W_O = (W_O if family == "gpt2" else W_O.T).unflatten(0, (4, -1))
    if is_gemma:
        W_O = W_O * (1 + weights["model.layers.1.post_attention_layernorm.weight"])
    sources = (slice(None), slice(1, 5))  # behind the earlier occurrences
    value = run(model, rows).cache["blocks.1.attn.hook_v"][sources].reshape(8, -1, W_O.shape[1])
    value = value.repeat_interleave(4 // value.shape[1], 1).transpose(0, 1)
    read = weights[f"{words}.weight"][rows[sources].flatten()] * (gain + is_gemma)
    read = read - read.mean(1, keepdim=True) if is_centred else read
    written = value @ W_O
    table = (written - written.mean(1, keepdim=True)) @ (read - read.mean(0)).T
    found = torch.linalg.eigvals(table)
    expected = found.real.sum(-1) / found.abs().sum(-1)
    for head, score in enumerate(expected.tolist()):
        assert scores(model, rows)[f"L1H{head}", "copying in a run"] == pytest.approx(
            score, abs=1e-4
        )


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
