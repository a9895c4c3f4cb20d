"""Skip trigrams that are set by hand, many in one head and at the end of a large vocabulary, and their total effect."""

import re

import pytest
import torch
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.sources.native import boot

import circuitkit as ck
from circuitkit.reports import logits, measures
from tests.support import zoo


def planted(d_vocab, n_sources, n_destinations, first_id, scale=1.0):
    """A model with one layer of two heads: L0H1 attends from each destination to its source, and writes."""
    config = {"d_model": 96, "d_head": 24, "n_layers": 1, "n_heads": 2, "n_ctx": 64}
    config |= {"normalization_type": None, "attn_only": True, "act_fn": "gelu", "seed": 0}
    config |= {"architecture": "TransformerLensNative", "init_weights": False}
    model = boot(TransformerBridgeConfig(d_vocab=d_vocab, **config))
    generator = torch.Generator().manual_seed(1)

    def directions(n):
        return torch.nn.functional.normalize(torch.randn(n, 96, generator=generator))

    embedding, outputs = directions(d_vocab), directions(d_vocab)
    order = first_id + torch.randperm(d_vocab - first_id, generator=generator)
    ids = order[: n_sources * (2 + n_destinations)].view(n_sources, -1)
    W = {side: torch.zeros(2, 96, 24) for side in "qkv"}
    W["o"] = torch.zeros(2, 24, 96)
    for k, (source, completion, *destinations) in enumerate(ids.tolist()):
        W["q"][1, :, k] = 16 * 24**0.5 * embedding[destinations].sum(0)
        W["k"][1, :, k] = W["v"][1, :, k] = embedding[source]
        W["o"][1, k] = 5 * outputs[completion]
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    state |= {"embed.weight": embedding, "unembed.weight": scale * outputs}
    state["blocks.0.attn.o.weight"] = W.pop("o").flatten(0, 1).mT
    state |= {f"blocks.0.attn.{side}.weight": W[side].mT.flatten(0, 1) for side in W}
    model.load_state_dict(state)
    expected = {(s, d, c) for s, c, *places in ids.tolist() for d in places}
    return model.eval().requires_grad_(False), expected


def found_in(model):
    lines = measures.trigrams(measures.Subject(model, (0,), ""), 0)
    return lines, {
        tuple(map(int, re.findall(r"#(\d+)", line.text)))
        for line in lines
        if line.measure == "skip trigram" and line.p < 0.01 and line.excess > 1.5
    }


@pytest.mark.parametrize(
    ("n_sources", "n_destinations"), [pytest.param(20, 1, marks=pytest.mark.weekly), (6, 3)]
)
def test_planted_trigrams_are_found_at_the_end_of_the_vocabulary(n_sources, n_destinations):
    model, expected = planted(1400, n_sources, n_destinations, 1100)
    lines, found = found_in(model)
    assert len(expected & found) >= 0.9 * len(expected)
    assert lines[0].value == 1.0
    assert "1,400 sources" in lines[0].text
    # nothing follows the head, so it adds in all what it writes, less what it writes at another source
    total = {line.text: line.value for line in lines if line.measure == "total effect"}
    direct = {line.text: line.value for line in lines if line.measure == "skip trigram"}
    shares = torch.tensor([value / direct[text] for text, value in total.items()])
    assert len(shares) >= 18
    assert 0.7 < shares.mean() < 1.0


@pytest.mark.weekly
def test_planted_trigrams_are_found_in_a_vocabulary_that_is_not_looked_through():
    model, expected = planted(20_000, 20, 2, 1100)
    lines, found = found_in(model)
    assert len(expected & found) >= 0.9 * len(expected)
    assert "419 sources, 20,000 destinations" in lines[0].text


def test_the_floor_of_a_skip_trigram_grows_with_the_spread_of_the_logits():
    """The same trigrams of 5 logits, in a model that adds noise of hundreds of logits by its embedding."""
    model, _ = planted(200, 4, 1, 0)
    among = torch.arange(200)
    assert logits.Text.of(model, among, []).floor == 1.5
    model.load_state_dict(
        model.state_dict()
        | {"embed.weight": 4e3 * torch.randn(200, 96, generator=torch.Generator().manual_seed(0))}
    )
    text = logits.Text.of(model, among, [])
    spread = ck.run(model, torch.arange(64)[None]).logits.std(-1).mean()
    assert text.floor == pytest.approx(float(0.25 * spread), rel=0.1)


def test_skip_trigrams_are_refused_where_a_network_computes_the_logits():
    """What a head of MiniLM writes gives up to 31 logits by W_U, and its total effect is near 0."""
    with pytest.raises(ValueError, match="a network .mlm_head. computes them"):
        measures.trigrams(measures.Subject(zoo.make("bert"), (1, 2), ""), 0)
