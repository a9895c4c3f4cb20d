"""Mistakes that a reader makes in use, which no annotation can see: each is explained."""

import math
from functools import cache

import numpy as np
import pytest
import torch

import circuitkit as ck
from circuitkit import (
    circuits,
    conversion,
    figures,
    induction,
    paths,
    residual,
    skip_trigrams,
    superposition,
)
from circuitkit.rows import Repeated
from circuitkit.superposition.block import FAST
from circuitkit.tables import Table
from circuitkit.training import fit
from circuitkit_book.residual_stream import subspace_overlap
from circuitkit_book.skip_trigram_evidence import count_evidence
from tests.support import tiny_models, zoo

SIZES = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}
TOKENS = torch.arange(21).reshape(3, 7)
TWICE = torch.cat([TOKENS, TOKENS], dim=1)
X = torch.randn(7, 12, generator=torch.Generator().manual_seed(0))
W = torch.ones(1, 4, 2)
WEIGHT = torch.ones(1, requires_grad=True)


@cache
def model(seed=0, **settings):
    return tiny_models.boot(torch.float32, seed, **SIZES, **settings)


def other():
    return model(1)


def heads():
    return ck.heads_of(model())


def strongest(**settings):
    return skip_trigrams.strongest(model(), "L0H1", **settings)


def neurons():
    return conversion.neuron_heads(torch.eye(2), torch.eye(2))


def record(d_model):
    x = torch.ones(2, 3, d_model)
    return superposition.LayerRecord(x, x, 2)


@cache
def broken():
    """A model with NaN in its weights."""
    weight = model(2).blocks[0].attn.v.original_component.weight
    torch.nn.init.constant_(weight, torch.nan)
    return model(2)


def with_mlp():
    return model(attn_only=False, d_mlp=7)


MISTAKES = [
    (lambda: circuits.full_ov(other(), heads()), "Give heads_of"),
    (lambda: circuits.full_qk(other(), heads()), "Give heads_of"),
    (lambda: subspace_overlap(heads(), ck.heads_of(other())), "heads of one model"),
    (lambda: circuits.copying_score(model(), heads()), "heads first"),
    (lambda: circuits.copying_score(model(), other()), "heads first"),
    (lambda: induction.induction_loss(model(), Repeated(TWICE, 0, 0)), "period=0"),
    (lambda: induction.induction_loss(model(), Repeated(TWICE[:, :1].expand(3, 2), 1, 0)), "at"),
    (lambda: ck.heads_of(model(), 3), "expects names to be a string"),
    (lambda: heads().pattern(X[:, :5]), "read a stream"),
    (lambda: ck.heads_of(ck.load_model("zero-layer")), "no attention heads"),
    (lambda: ck.Heads(("a",), W, W, W, W.mT, norm_eps=math.nan), "norm_eps=nan"),
    (lambda: ck.Heads(("a",), W, W, W, W.mT, layers=(math.inf,)), "layer=inf"),
    (lambda: heads().to("tpu"), "device='tpu'"),
    (lambda: heads().allowed(-1), "n_pos=-1"),
    (lambda: ck.load_model("two-layer", device="tpu"), "Write device='cpu'"),
    (lambda: ck.run(model(), TOKENS.to_sparse()), "tensor.to_dense"),
    (lambda: ck.why(model(), TOKENS[:1].to("meta"), 3), "holds its numbers"),
    (lambda: heads().pattern(X.to("meta")), "holds its numbers"),
    (lambda: ck.run(ck.load_model("two-layer"), ""), "no tokens of its own"),
    (lambda: ck.why(ck.load_model("two-layer"), [""], 3), "no tokens of its own"),
    (lambda: ck.run(broken(), TOKENS), "holds NaN"),
    (lambda: ck.run(model(), TOKENS).grad, "Run has no 'grad'"),
    (lambda: heads().pattern(X.double()), "torch.float32"),
    (lambda: heads().results(X, torch.ones(1, 7, 7)), "dst, src"),
    (lambda: ck.Heads(("a",), [[1.0]], W, W, W.mT), "to be a tensor"),
    (lambda: ck.stack([heads()]), "expects first to be a Heads"),
    (lambda: paths.path_logits(model(), TOKENS).sum(at=9), "outside the text"),
    (lambda: count_evidence([(1, 2)], TOKENS), "three token ids"),
    (lambda: induction.scores(ck.load_model("zero-layer"), TWICE), "no attention heads"),
    (lambda: paths.score_decomposition(with_mlp(), TOKENS[0], "L0 MLP", 3, 2), "no attention head"),
    (lambda: skip_trigrams.strongest(with_mlp(), "L0 MLP"), "no attention head"),
    (lambda: strongest(unigram=torch.full((23,), torch.nan)), "finite"),
    (lambda: strongest(likelihood=torch.eye(23) / torch.zeros(23)), "finite"),
    (lambda: induction.repeated_tokens(3, 2, weights=torch.tensor([1, 1, torch.nan])), "finite"),
    (lambda: count_evidence([(1.9, 2, 3)], TOKENS), "three token ids"),
    (lambda: count_evidence([(-1, 2, 3)], TOKENS), "three token ids"),
    (lambda: count_evidence([("a", "b", "c")], TOKENS), "three token ids"),
    (lambda: count_evidence([(1, 2, 3)], TOKENS[:, :0]), "n_tokens=0"),
    (lambda: count_evidence(strongest(), TOKENS), "values.tolist"),
    (lambda: subspace_overlap(heads()[3:], heads()[:3]), "Swap the two"),
    (lambda: ck.why(model(), TOKENS[0], "a"), "An answer is the id"),
    (lambda: ck.to_attention_only(with_mlp(), max_error=math.nan), "at least 0"),
    (lambda: ck.why(model(), TOKENS[0], 5, versus="median"), "'mean'"),
    (lambda: conversion.head_sum("relu", sharpness=0.0), "sharpness=0.0"),
    (lambda: conversion.head_sum("relu", sharpness=torch.nan), "sharpness=nan"),
    (lambda: conversion.gate_sum("silu", -1.0), "reach=-1.0"),
    (lambda: conversion.head_sum("relu", sharpness=math.inf), "sharpness=inf"),
    (lambda: strongest(min_together=math.nan), "min_together=nan"),
    (lambda: figures.signed([1.0], limit=math.inf), "limit=inf"),
    (lambda: neurons().neuron(5), "asked for"),
    (lambda: neurons().heads([7]), "asked for"),
    (lambda: neurons()(torch.ones(3, 3)), "2 dimensions"),
    (lambda: figures.signed([1.0], limit=-1.0), "limit=-1.0"),
    (lambda: Table(torch.ones(2), {"head": ("a", "a")}), "one name"),
    (lambda: Table([1, 2], {"head": ("a", "b")}), "expects values"),
    (lambda: Table(torch.ones(2), ("a", "b")), "expects axes"),
    (lambda: Table(torch.ones(2), {"head": "ab"}), "expects axes"),
    (lambda: superposition.GATES.but(expansion=0), "expansion=0"),
    (lambda: superposition.train_gated(record(4), record(4), inits=0), "inits=0"),
    (lambda: superposition.train_gated(record(4), record(5)), "two records"),
    (lambda: superposition.GATES.but(power=-1.0), "power=-1.0"),
    (lambda: superposition.GATES.but(alpha=math.inf), "alpha=inf"),
    (lambda: superposition.GATES.but(lr_warmup=1.5), "lr_warmup=1.5 must be a share"),
    (lambda: superposition.GATES.but(d_gate=0), "d_gate=0"),
    (lambda: superposition.GATES.lr_at(-1), "step=-1"),
    (lambda: superposition.GatedBlock(FAST, 2, 4, target_rms=torch.nan), "target_rms=nan"),
    (lambda: superposition.train_gated(record(4), record(4), FAST.but(lr=torch.nan)), "=nan"),
    (lambda: fit([], lambda step: X.sum(), 3), "no parameter that requires a gradient"),
    (lambda: fit([X], lambda step: X.sum(), 3), "no parameter that requires a gradient"),
    (lambda: fit([WEIGHT], lambda step: WEIGHT.sum(), 3, learning_rate=math.inf), "step 0 is inf"),
    (lambda: fit([WEIGHT], lambda step: WEIGHT.sum(), 3, clip_norm=-1.0), "clip_norm=-1.0"),
    (lambda: fit([WEIGHT], lambda step: torch.zeros(()), 3), "depends on"),
    (lambda: fit([WEIGHT], lambda step: 3.0, 3), "depends on"),
]


@pytest.mark.parametrize(("mistake", "advice"), MISTAKES)
def test_a_mistake_is_explained(mistake, advice):
    with pytest.raises((TypeError, ValueError, IndexError, AttributeError), match=advice):
        mistake()


@pytest.mark.usefixtures("as_a_reader")
def test_mistakes_at_methods_are_explained():
    with pytest.raises(ValueError, match="read a stream"):
        heads().pattern(TOKENS)
    with pytest.raises((TypeError, ValueError), match="One path"):
        paths.path_logits(model(), TOKENS)["direct", "L0H1"]


OF_LOGITS = {
    "path_logits": lambda hooked: paths.path_logits(hooked, TOKENS),
    "shorter paths": lambda hooked: paths.path_logits(hooked, TOKENS, max_order=1),
    "why": lambda hooked: ck.why(hooked, TOKENS[0], 5),
    "logit_attribution": lambda hooked: residual.logit_attribution(hooked, TOKENS, 5),
}
OF_STREAM = {
    "decompose": lambda hooked: residual.decompose(hooked, TOKENS),
    "score": lambda hooked: paths.score_decomposition(hooked, TOKENS[0], "L1H0", 3, 2),
}
AFTER_STREAM = ("ln_final.hook_in", "ln_final.hook_out", "unembed.hook_out")
CHANGED_SUMS = [
    *((split, place) for split in OF_LOGITS for place in ("blocks.1.hook_in", *AFTER_STREAM)),
    *((split, "blocks.1.attn.hook_z") for split in ("path_logits", "shorter paths")),
    *((split, "blocks.1.hook_in") for split in OF_STREAM),
]


@pytest.mark.parametrize("is_permanent", [True, pytest.param(False, marks=pytest.mark.weekly)])
@pytest.mark.parametrize(("split", "place"), CHANGED_SUMS)
def test_a_hook_that_changes_a_sum_is_found(split, place, is_permanent):
    split = {**OF_LOGITS, **OF_STREAM}[split]
    hooked = tiny_models.boot(torch.float32, 0, **SIZES, normalization_type="LN")
    split(hooked)
    hooked.add_hook(place, lambda value, hook: 2 * value, is_permanent=is_permanent)
    with pytest.raises(ValueError, match="A hook changes values"):
        split(hooked)


def test_a_hook_that_parts_show_is_no_mistake():
    hooked = tiny_models.boot(torch.float32, 0, **SIZES)
    hooked.add_hook("blocks.1.attn.hook_z", lambda z, hook: 2 * z)
    expected = hooked(TOKENS[:1])[0, -1, 5]
    torch.testing.assert_close(ck.why(hooked, TOKENS[0], 5, versus=None).values.sum(), expected)


def test_counts_may_be_integers_and_answers_may_come_from_numpy():
    counts = torch.arange(1, 24)
    assert strongest(unigram=counts).equals(strongest(unigram=counts.float()))
    rows = induction.repeated_tokens(23, 3, weights=counts)
    assert rows.tokens.equal(induction.repeated_tokens(23, 3, weights=counts.float()).tokens)
    shares = ck.why(model(), TOKENS[0], np.int64(5))
    assert shares.values.equal(ck.why(model(), TOKENS[0], 5).values)


def test_the_text_of_a_wide_table_is_short():
    assert len(repr(residual.decompose(model(), TOKENS))) < 3000


def test_the_whole_input_of_a_gated_mlp_is_its_gate_beside_what_the_gate_multiplies():
    gated = model(attn_only=False, d_mlp=7, act_fn="silu", gated_mlp=True)
    whole, gate, inner = (
        residual.virtual_weights(gated, "L0H1", f"L1 MLP{side}").AB for side in ("", ".Q", ".V")
    )
    torch.testing.assert_close(whole, torch.cat([gate, inner], dim=1))


def test_a_size_of_the_vocabulary_that_was_written_by_hand_is_not_trusted():
    native = tiny_models.boot(torch.float32, **zoo.NATIVE)
    right = ck.circuits.full_ov(native, "L0H1").AB
    native.cfg.d_vocab = 60
    assert torch.equal(ck.circuits.full_ov(native, "L0H1").AB, right)
    assert ck.induction.scores(native).values.isfinite().all()
    with pytest.raises(ValueError, match="has the tokens 0 to 49"):
        ck.run(native, torch.tensor([[55]]))


def test_a_run_in_autocast_is_that_outside():
    native, cut = tiny_models.boot(torch.float32, **zoo.NATIVE), "L0H1->L1H2.K"
    outside = ck.run(native, TOKENS[:1], without=cut)
    table = ck.residual.decompose(native, TOKENS[:1]).values
    shares = ck.why(native, TOKENS[:1], 3).values
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ck.run(native, TOKENS[:1], without=cut)
        assert torch.equal(inside.logits, outside.logits)
        assert torch.equal(inside.part("L1H2"), outside.part("L1H2"))
        assert torch.equal(inside.read("L1H2"), outside.read("L1H2"))
        assert torch.equal(ck.residual.decompose(native, TOKENS[:1]).values, table)
        assert torch.equal(ck.why(native, TOKENS[:1], 3).values, shares)
