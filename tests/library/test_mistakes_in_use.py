"""Mistakes that a reader makes in use, which no annotation can see: each is explained."""

from functools import cache

import pytest
import torch

import circuitkit as ck
from circuitkit import circuits, induction, paths, residual, skip_trigrams
from circuitkit.rows import Repeated
from tests.support import tiny_models

SIZES = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}
TOKENS = torch.arange(21).reshape(3, 7)
TWICE = torch.cat([TOKENS, TOKENS], dim=1)
X = torch.randn(7, 12, generator=torch.Generator().manual_seed(0))
W = torch.ones(1, 4, 2)


@cache
def model(seed=0, **settings):
    return tiny_models.boot(torch.float32, seed, **SIZES, **settings)


def other():
    return model(1)


def heads():
    return ck.heads_of(model())


def with_mlp():
    return model(attn_only=False, d_mlp=7)


MISTAKES = [
    (lambda: circuits.full_ov(other(), heads()), "Give heads_of"),
    (lambda: circuits.full_qk(other(), heads()), "Give heads_of"),
    (lambda: residual.subspace_overlap(heads(), ck.heads_of(other())), "heads of one model"),
    (lambda: circuits.copying_score(model(), heads()), "heads first"),
    (lambda: circuits.copying_score(model(), other()), "heads first"),
    (lambda: induction.induction_loss(model(), Repeated(TWICE, 0, 0)), "period=0"),
    (lambda: induction.induction_loss(model(), Repeated(TWICE[:, :1].expand(3, 2), 1, 0)), "at"),
    (lambda: ck.heads_of(model(), 3), "expects names to be a string"),
    (lambda: heads().pattern(TOKENS), "read a stream"),
    (lambda: heads().pattern(X[:, :5]), "read a stream"),
    (lambda: heads().pattern(X.double()), "torch.float32"),
    (lambda: heads().results(X, torch.ones(1, 7, 7)), "dst, src"),
    (lambda: ck.Heads(("a",), [[1.0]], W, W, W.mT), "to be a tensor"),
    (lambda: ck.stack([heads()]), "expects first to be a Heads"),
    (lambda: paths.path_logits(model(), TOKENS).sum(at=9), "outside the text"),
    (lambda: skip_trigrams.count_evidence([(1, 2)], TOKENS), "three token ids"),
    (lambda: induction.scores(ck.load_model("zero-layer"), TWICE), "no attention heads"),
    (lambda: paths.score_decomposition(with_mlp(), TOKENS[0], "L0 MLP", 3, 2), "no attention head"),
    (lambda: skip_trigrams.strongest(with_mlp(), "L0 MLP"), "no attention head"),
]


@pytest.mark.parametrize(("mistake", "advice"), MISTAKES)
def test_a_mistake_is_explained(mistake, advice):
    with pytest.raises((TypeError, ValueError), match=advice):
        mistake()


def test_the_whole_input_of_a_gated_mlp_is_its_gate_beside_what_the_gate_multiplies():
    gated = model(attn_only=False, d_mlp=7, act_fn="silu", gated_mlp=True)
    whole, gate, inner = (
        residual.virtual_weights(gated, "L0H1", f"L1 MLP{side}").AB for side in ("", ".Q", ".V")
    )
    torch.testing.assert_close(whole, torch.cat([gate, inner], dim=1))
