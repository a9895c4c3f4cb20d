"""The held-out text and the statistics of the training text."""

import pytest
import torch

from circuitkit.models import (
    corpus_statistics,
    heldout_rows,
    heldout_text,
    heldout_tokens,
)
from circuitkit_book.bigrams import bigram_log_probs


@pytest.mark.parametrize("discount", [0.3, 0.75, 1.0])
def test_log_probs_against_loops(discount):
    generator = torch.Generator().manual_seed(0)
    count = torch.randint(0, 4, (7, 7), generator=generator) * torch.randint(
        0, 2, (7, 7), generator=generator
    )
    count[3] = 0
    log_p = bigram_log_probs(count, discount)
    kinds = [sum(1 for a in range(7) if count[a, b]) + 0.5 for b in range(7)]
    for a in range(7):
        total, seen = int(count[a].sum()), sum(1 for b in range(7) if count[a, b])
        for b in range(7):
            q = kinds[b] / sum(kinds)
            p = (
                max(int(count[a, b]) - discount, 0) / total + discount * seen / total * q
                if total
                else q
            )
            assert log_p[a, b].exp().item() == pytest.approx(p, rel=1e-12)


def test_baselines_are_those_of_the_statistics(manifest, heldout):
    """Held-out loss of the smoothed unigram and bigram, recomputed from what ships."""
    s, recorded = corpus_statistics(), manifest["baselines"]
    before, after = heldout[1:-1], heldout[2:]  # scored from the third token on, as the trigram is
    scored = after != 0
    assert int(scored.sum()) == recorded["tokens"]
    log_p = bigram_log_probs(s.bigram, recorded["discounts"]["bigram"])
    loss = -log_p[before[scored], after[scored]].mean().item()
    assert loss == pytest.approx(recorded["bigram"], abs=1e-3)
    unigram = ((s.unigram + 0.5) / (s.unigram + 0.5).sum()).log()
    assert -unigram[after[scored]].mean().item() == pytest.approx(recorded["unigram"], abs=1e-3)


def test_heldout_text(manifest, heldout):
    passages = heldout_text()
    assert all(set(passage) == {"file", "text"} and passage["text"].strip() for passage in passages)
    assert len(heldout) == manifest["tokens"]["heldout"]["tokens"]


def test_heldout_tokens(heldout):
    assert torch.equal(heldout_tokens(), heldout)
    heldout_rows(5, 33).zero_()  # the reader's own tensor: nobody else sees this
    assert torch.equal(heldout_tokens(), heldout)


def test_heldout_rows(heldout):
    rows = heldout_rows(5, 33, seed=3)
    assert rows.shape == (5, 33)
    assert not rows[:, 0].any()
    flat = heldout.tolist()
    for row in rows[:, 1:].tolist():  # each is a run of the held-out text
        assert any(flat[at : at + 32] == row for at in range(len(flat)) if flat[at] == row[0])
    assert torch.equal(rows, heldout_rows(5, 33, seed=3))
    assert not torch.equal(rows, heldout_rows(5, 33, seed=4))
    assert heldout_rows(2).shape == (2, 256)
    for n_ctx in (13, 32):  # a place begins or ends at the mark between passages
        rows = heldout_rows(64, n_ctx)
        assert rows[:, 1].all()
        assert rows[:, -1].all()
    state = torch.get_rng_state()
    heldout_rows(3)
    assert torch.equal(state, torch.get_rng_state())  # nobody's global seed is used


def test_rows_that_cannot_be(heldout):
    total = len(heldout)
    for n, n_ctx in ((0, 10), (3, 1), (1, total)):
        with pytest.raises(ValueError, match=f"given n={n} and n_ctx={n_ctx}.*fewer than {total}"):
            heldout_rows(n, n_ctx)
    assert heldout_rows(1, total - 1).shape == (1, total - 1)
