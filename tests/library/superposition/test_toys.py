"""Toy models: what they complete, the shares of their heads, and what cannot be made."""

import dataclasses
from importlib.resources import files

import pytest
import torch
from safetensors import safe_open

import circuitkit as ck
from circuitkit.superposition import head_logits
from circuitkit_book.stored_tables import load_results
from circuitkit_book.superposition_models import (
    hand_specified,
    load_original,
    toy_model,
)
from circuitkit_book.superposition_task import SkipTrigramTask, trigram_verdict
from studies.count_tables.originals import initial_weights, loss, next_tokens
from tests.support import tiny_models

DATA = files("circuitkit") / "data" / "superposition"


def with_biases():
    draw = torch.Generator().manual_seed(1)
    model = hand_specified(2, 3)
    biases = {name: torch.randn(2, 1, generator=draw) for name in ("b_Q", "b_K", "b_V")}
    return toy_model(dataclasses.replace(ck.heads_of(model), **biases), model.task)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hand_specified(2, 3),
        lambda: load_original(3, 4, 0),
        with_biases,
    ],
)
def test_logits_are_the_sum_of_the_heads_shares(make):
    model = make()
    prompt = model.task.sample(1, seed=4)
    written, residual = head_logits(model, prompt)
    # float32, scores up to 60
    assert torch.allclose(written.sum(2) + residual, model(prompt), atol=1e-5)
    assert torch.equal(residual, model.W_E[prompt] @ model.W_U)


def test_two_heads_three_trigrams_number_by_number():
    """Trigram 3: each head writes most on its own completion, and their sum on the third."""
    model = hand_specified(2, 3, gain=4.0)
    prompt = torch.tensor([[7, 0, 5, 3]])  # beginning, source, a completion, destination 3
    written, residual = (part[0, -1] for part in head_logits(model, prompt))
    assert written[0].round(decimals=4).tolist() == [0, 0, 0, 0, 4, -2, 3, 0]
    assert written[1].round(decimals=4).tolist() == [0, 0, 0, 0, -2, 4, 3, 0]
    assert residual.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert model(prompt)[0, -1].argmax() == 6


@pytest.mark.parametrize(("n_heads", "n_trigrams"), [(2, 3), (4, 10), (3, 2)])
def test_trigrams_beyond_the_heads_are_in_superposition(n_heads, n_trigrams):
    verdict = trigram_verdict(hand_specified(n_heads, n_trigrams), rows=60)
    assert verdict.is_learnt.all()
    assert verdict.superposed == tuple(range(n_heads + 1, n_trigrams + 1))
    for trigram in range(1, min(n_heads, n_trigrams) + 1):
        assert verdict.carries[:, trigram - 1].nonzero().tolist() == [[trigram - 1]]


def test_stored_verdicts_are_those_of_today():
    rows = [row for row in load_results("originals") if row["seed"] in (5, 30)]
    assert len(rows) == 6
    for row in rows:
        n_heads, n_trigrams = int(row["config"][0]), int(row["config"][2])
        model = load_original(n_heads, n_trigrams, row["seed"])
        for column, form in (("odds", "odds"), ("strict", "argmax"), ("post", "post")):
            verdict = trigram_verdict(model, form)
            assert int(verdict.is_learnt.sum()) == row[f"{column}_learnt"]
            assert len(verdict.superposed) == row[f"{column}_distributed"]
            assert int(verdict.carries.any(0).sum()) == row[f"{column}_carried"]


def test_two_stored_tables_count_the_same_originals():
    """`thresholds.csv` at 1 nat is `originals.csv`, and it counts no more models at higher ones."""
    originals, thresholds = load_results("originals"), load_results("thresholds")
    for n_heads in (2, 3, 4):
        n_rules = n_heads + 1
        ours = [row for row in originals if row["config"] == f"{n_heads}H{n_rules}T"]
        counts = {r["threshold"]: r["learnt_all"] for r in thresholds if r["heads"] == n_heads}
        assert counts[1] == sum(row["odds_learnt"] == n_rules for row in ours)
        in_order = [counts[threshold] for threshold in sorted(counts)]
        assert in_order == sorted(in_order, reverse=True)


def test_the_loss_by_counts_is_the_cross_entropy_of_the_models():
    task = SkipTrigramTask(3)
    tokens = task.sample(40, seed=1)
    p = {name: value.detach() for name, value in initial_weights(8, 3, 2, seeds=2).items()}
    plain = loss(p, *next_tokens(tokens, 8), 0.0, 0.6)
    priced = loss(p, *next_tokens(tokens, 8), 0.5, 0.6)
    for run in range(2):
        heads = ck.Heads(("L0H0", "L0H1", "L0H2"), **{k: v[run] for k, v in p.items()})
        model = toy_model(heads, task)
        logits = model(tokens)[:, :-1].flatten(0, 1)
        entropy = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        lengths = head_logits(model, tokens[:, :-1])[0].norm(dim=-1)
        penalty = lengths.pow(0.6).sum(-1).pow(1 / 0.6).mean()
        assert plain[run].item() == pytest.approx(entropy.item(), abs=1e-5)  # float32
        # lengths are rounded up to 0.001
        assert (priced - plain)[run].item() == pytest.approx(0.5 * penalty.item(), rel=0.01)


def test_a_trigram_shared_by_all_four_heads():
    model = hand_specified(4, 5, shared=[(0, 1, 2, 3)])
    assert trigram_verdict(model, rows=60).superposed == (5,)
    written = head_logits(model, torch.tensor([[11, 0, 5, 5]]))[0][0, -1]
    assert written[0].argmax() != 10
    assert written[3].argmax() != 10
    assert written.sum(0).argmax() == 10


def test_models_that_cannot_be_made_are_refused():
    with pytest.raises(ValueError, match=r"4 trigrams are too many for 2 heads.*two_head_model"):
        hand_specified(2, 4)
    with pytest.raises(ValueError, match="shared has 2 groups, and 1 trigrams are shared"):
        hand_specified(4, 5, shared=[(0, 1), (2, 3)])
    with pytest.raises(ValueError, match=r"group \[0, 1\] and \[0, 1, 2\] lie one inside"):
        hand_specified(4, 6, shared=[(0, 1), (0, 1, 2)])
    with pytest.raises(ValueError, match="needs two or more of the heads 0 to 3"):
        hand_specified(4, 5, shared=[(0, 7)])
    with pytest.raises(ValueError, match=r"has 10 tokens.*W_E is \(8, 8\)"):
        toy_model(ck.heads_of(hand_specified(2, 3)), SkipTrigramTask(4), torch.eye(8))


def test_models_whose_logits_are_no_sum_over_heads_are_refused():
    sizes = {"d_model": 8, "d_head": 2, "n_heads": 2, "n_ctx": 8, "d_vocab": 8}
    two_layers = tiny_models.boot(n_layers=2, **sizes)
    with pytest.raises(ValueError, match="one layer of attention, no MLP, no norm"):
        head_logits(two_layers, torch.tensor([[1, 2]]))


def test_stored_originals():
    model = load_original(4, 5, 13)
    heads = ck.heads_of(model)
    with safe_open(DATA / "originals.safetensors", "pt") as stored:
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            expected = stored.get_tensor(f"4H5T/{name}")[13]
            assert torch.allclose(getattr(heads, name), expected, rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match="No models with 5 heads and 6 trigrams are stored"):
        load_original(5, 6, 0)
