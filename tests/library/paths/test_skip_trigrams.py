"""Skip trigrams, their evidence in text, and the bugs, against loops over every triple."""

import itertools
import math

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import circuitkit as ck
from circuitkit import skip_trigrams as skip
from circuitkit.skip_trigrams import strongest
from circuitkit_book import skip_trigram_bugs
from circuitkit_book.skip_trigram_bugs import find_bugs, shipped_statistics
from circuitkit_book.skip_trigram_evidence import COUNTS, count_evidence, with_shares
from tests.support import zoo


@pytest.fixture(scope="module")
def small(boot):
    return boot(n_layers=1, d_vocab=7, d_model=11, n_ctx=10, bias=False)


def by_hand(model, head, unigram, likelihood=None, allowed=range(7), window=32):
    """(strength, a, b, c, w, effect) of every triple, attention weighed place by place."""
    q, k, v, o = (getattr(model, f"W_{name}")[0, head].detach() for name in "QKVO")
    W_E, W_U = model.W_E.detach(), model.W_U.detach()
    typical = [float(n) / float(sum(unigram)) for n in unigram]
    ov = W_E @ v @ o @ W_U

    def weight(b, a):
        return math.exp(float((W_E[b] @ q) @ (W_E[a] @ k)) / math.sqrt(5))

    rows = []
    for a, b in itertools.product(allowed, repeat=2):
        of_typical = sum(p * weight(b, other) for other, p in enumerate(typical))
        w = weight(b, a) / (weight(b, a) + (window - 1) * of_typical)
        for c in allowed:
            lift = ov[a] - sum(p * ov[other] for other, p in enumerate(typical))
            effect = float(lift[c] - lift.mean())
            chance = 1.0 if likelihood is None else float(likelihood[b, c])
            rows.append((effect * w * chance, a, b, c, w, effect))
    return rows


def best_per_pair(rows, k):
    best = {}
    for row in sorted(rows, key=lambda row: -row[0]):
        best.setdefault((row[1], row[3]), row)
    return [row for row in best.values() if row[0] > 0][:k]


@pytest.mark.parametrize("block", [skip.BLOCK, 14])
@pytest.mark.parametrize("weighted", [False, True])
def test_ranking_equals_loops_with_and_without_blocks(small, weighted, block, monkeypatch):
    monkeypatch.setattr(skip, "BLOCK", block)  # 14 numbers are two rows of 7 tokens
    generator = torch.Generator().manual_seed(1)
    unigram = torch.rand(7, generator=generator, dtype=torch.float64)
    likelihood = torch.rand(7, 7, generator=generator, dtype=torch.float64) if weighted else None
    found = strongest(small, "L0H1", 15, unigram=unigram, likelihood=likelihood, window=6)
    expected = best_per_pair(by_hand(small, 1, unigram, likelihood, window=6), 15)
    assert len(found) == 15
    for triple, (strength, a, b, c, w, effect) in zip(found.itertuples(), expected, strict=True):
        assert triple[1:4] == (a, b, c)
        assert triple[4:7] == pytest.approx((strength, w, effect), abs=1e-10)
        assert triple.Index == f"{a} ... {b} -> {c}"


def ids_of(found):
    return [tuple(row) for row in found[["source", "destination", "completion"]].values.tolist()]


def test_uniform_by_default_and_among(small):
    allowed = torch.tensor([True, False, True, True, False, True, False])
    found = strongest(small, "L0H0", 50, among=allowed, window=3)
    expected = best_per_pair(by_hand(small, 0, [1.0] * 7, allowed=[0, 2, 3, 5], window=3), 50)
    assert ids_of(found) == [row[1:4] for row in expected]
    assert found["strength"].iloc[0] == pytest.approx(expected[0][0], abs=1e-12)


@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
def test_norms_and_the_cap_of_scores_count(family):
    """Gemma 2 caps its scores and multiplies behind a layer; OLMo 2 norms the queries of a layer together."""
    model = zoo.make(family)
    layer, last = model.original_model.model.layers[0], model.original_model.model.norm
    attention, is_gemma = layer.self_attn, family == "gemma2"
    with torch.no_grad():
        rows = model.original_model.model.embed_tokens(torch.arange(50))
        rows = layer.input_layernorm(rows) if is_gemma else rows
        q, k, v = attention.q_proj(rows), attention.k_proj(rows), attention.v_proj(rows)
        if not is_gemma:
            q, k = attention.q_norm(q), attention.k_norm(k)
        d = attention.head_dim
        q, k, v = q[:, d : 2 * d], k[:, :d], v[:, :d]  # L0H1 shares the first keys with L0H0
        scores = q @ k.T * attention.scaling
        scores = 5 * (scores / 5).tanh() if is_gemma else scores
        gains = [norm.weight + is_gemma for norm in (layer.post_attention_layernorm, last)]
        written = v @ attention.o_proj.weight[:, d : 2 * d].T * gains[0] * gains[1]
        ov = written @ model.original_model.lm_head.weight.T
    lift = ov - ov.mean(0)
    lift = lift - lift.mean(1, keepdim=True)
    ratio = scores.exp() / scores.exp().mean(1, keepdim=True)
    weight = ratio / (ratio + 5)
    best = strongest(model, "L0H1", 8, window=6)
    products = (weight.amax(0)[:, None] * lift).flatten().topk(8).values
    assert best["strength"].tolist() == pytest.approx(products.tolist(), rel=1e-5)
    for triple in best.itertuples():
        assert triple.attention == pytest.approx(float(weight[triple.destination, triple.source]))


def test_rare_pairs_are_left_out(small):
    counts = torch.tensor([100.0, 50, 20, 10, 5, 2, 1])
    found = strongest(small, "L0H0", 50, unigram=counts, window=4, min_together=20.0)
    assert len(found)
    for triple in found.itertuples():
        assert counts[triple.source] * counts[triple.destination] * 4 / 188 >= 20
    rows = [
        row
        for row in by_hand(small, 0, counts, window=4)
        if counts[row[1]] * counts[row[2]] * 4 / 188 >= 20
    ]
    assert ids_of(found) == [row[1:4] for row in best_per_pair(rows, 50)]


def counted(triple, rows, nearest, farthest):
    n_with = hits_with = n_without = hits_without = 0
    a, b, c = triple
    for row in rows:
        for t in range(len(row) - 1):
            if row[t] != b:
                continue
            if any(row[t - d] == a for d in range(nearest, farthest + 1) if t - d >= 0):
                n_with, hits_with = n_with + 1, hits_with + (row[t + 1] == c)
            else:
                n_without, hits_without = n_without + 1, hits_without + (row[t + 1] == c)
    return [n_with, hits_with, n_without, hits_without]


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(1, 13), (3, 11), (2, 40)]),
    window=st.sampled_from([(1, 1), (1, 3), (2, 5), (4, 30)]),
    seed=st.integers(0, 999),
)
def test_evidence_equals_loops(shape, window, seed):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, 4, shape, generator=generator)
    triples = [(0, 1, 2), (0, 1, 3), (1, 1, 1), (3, 2, 0), (0, 1, 2)]
    expected = [counted(triple, text.tolist(), *window) for triple in triples]
    assert count_evidence(triples, text, window=window)[COUNTS].values.tolist() == expected
    if shape[0] == 1:
        found = count_evidence(triples, text[0], window=window)
        assert found[COUNTS].values.tolist() == expected


def test_evidence_reads_as_shares():
    counts = [
        [40, 10, 400, 20],
        [0, 0, 4, 1],
        [3, 0, 0, 0],
        [3, 0, 4, 0],
        [3, 3, 4, 4],
        [0, 0, 0, 0],
    ]
    found = with_shares(pd.DataFrame(counts, columns=COUNTS))
    assert found.loc[0, ["share_with", "share_without"]].tolist() == [0.25, 0.05]
    pooled = 30 / 440
    expected = 0.2 / math.sqrt(pooled * (1 - pooled) * (1 / 40 + 1 / 400))
    assert found.loc[0, "z"] == pytest.approx(expected)
    assert math.isnan(found.loc[1, "share_with"])
    assert math.isnan(found.loc[2, "share_without"])
    assert (found.loc[1:, "z"] == 0).all()


TRIPLES = [(5, 1, 2), (5, 3, 4), (5, 1, 6), (2, 1, 3), (5, 6, 4)]


def test_bugs_equal_loops(boot, monkeypatch):
    model = boot(n_layers=2, d_vocab=7)
    contexts = torch.tensor([[0, 3, 4], [0, 1, 1]])
    monkeypatch.setattr(skip_trigram_bugs, "ROWS", 2)
    search = find_bugs(model, TRIPLES, contexts, 3, occurring=[(5, 3, 6, 99)])
    crossed = {
        (a, b2, c1, c2, b1)
        for (a, b1, c1), (a2, b2, c2) in itertools.product(TRIPLES, repeat=2)
        if a == a2 and b1 != b2 and c1 != c2 and (a, b2, c1) not in {*TRIPLES, (5, 3, 6)}
    }
    assert {tuple(row) for row in search.crossings.tolist()} == crossed
    chances = {}
    for a, b2, wrong, right, licensed in crossed:
        rows = [torch.tensor([[*context, a, b2]]) for context in contexts.tolist()]
        p = [model(row).detach()[0, -1].softmax(-1) for row in rows]
        chances[a, b2, wrong, right, licensed] = [
            sum(float(x[i]) for x in p) / 2 for i in (wrong, right)
        ]
    for row, p_wrong in zip(search.crossings.tolist(), search.p_wrong.tolist(), strict=True):
        assert p_wrong == pytest.approx(chances[tuple(row)][0], abs=1e-12)
    best = sorted(chances.items(), key=lambda item: -item[1][0])
    assert search.bugs[0].p_wrong == pytest.approx(best[0][1][0], abs=1e-12)
    for bug in search.bugs:
        assert [bug.p_wrong, bug.p_right] == pytest.approx(chances[tuple(bug[:5])], abs=1e-12)
    keys = [(bug.source, bug.destination, bug.wrong) for bug in search.bugs]
    assert len(set(keys)) == len(keys)


def test_direct_share_of_a_bug(boot):
    model = boot(n_layers=1, d_vocab=7, bias=False)
    search = find_bugs(model, TRIPLES, torch.tensor([[0, 3, 4], [0, 1, 1], [0, 6, 2]]), 2)
    assert len(search.bugs) == 2
    for bug in search.bugs:
        stream = model.W_E.detach()[bug.destination] + model.W_pos.detach()[4]
        expected = (stream @ model.W_U.detach()).softmax(-1)[bug.wrong]
        assert bug.p_wrong_direct == pytest.approx(float(expected), abs=1e-12)


def test_shipped_statistics_belong_to_the_shipped_model():
    """After new weights, make them again with studies/edition-2/train/skip_trigram_statistics.py."""
    files = ck.models.model_card("one-layer")["files"]
    assert shipped_statistics().provenance["weights_sha256"] == list(files.values())[-1]["sha256"]


NO_TOKENS = torch.zeros(7, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: strongest(m, "L0H0", among=NO_TOKENS), "among .* not all of them 0"),
        (lambda m: strongest(m, "L0H0", unigram=torch.ones(5)), r"unigram has the shape \(5,\)"),
        (lambda m: strongest(m, "L0H0", unigram=-torch.ones(7)), "unigram .* at least 0"),
        (
            lambda m: count_evidence([(1, 2, 3)], torch.zeros(5).long(), window=(3, 2)),
            r"window=\(3, 2\) holds no token",
        ),
        (lambda _: strongest(zoo.make("bert"), "L0H0"), "normalises its whole stream"),
        (lambda m: find_bugs(m, TRIPLES[:1], torch.zeros(1, 2).long()), "No two triples cross"),
        (lambda m: find_bugs(m, TRIPLES, torch.zeros(1, 9).long()), r"9 tokens. At most 8 fit"),
        (lambda m: find_bugs(m, [(1, 2, 3), (1, 4, 77)], torch.zeros(1, 2).long()), "0 to 6"),
    ],
)
def test_wrong_arguments(small, call, text):
    with pytest.raises(ValueError, match=text):
        call(small)
