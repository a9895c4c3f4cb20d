"""What an editor knows of the library, checked by pyright (`make types`) and never run.

Each `assert_type` fails when pyright infers another type. Each line of `mistakes` has an error that pyright must report: a
comment that excuses an error that is not there is itself an error.
"""

from typing import Any, assert_type

import torch
from torch import Tensor
from transformer_lens import FactoredMatrix
from transformer_lens.model_bridge import TransformerBridge

import circuitkit as ck
from circuitkit import circuits, conversion, induction, models, paths, residual
from circuitkit.tables import Table
from circuitkit_book import exercises
from circuitkit_book.superposition_models import load_original
from circuitkit_book.superposition_task import SkipTrigramTask, trigram_verdict


def heads_and_models() -> None:
    model = ck.load_model("two-layer", step=1000)
    assert_type(model, TransformerBridge)
    assert_type(ck.list_models(), list[str])
    heads = ck.heads_of(model)
    assert_type(heads, ck.Heads)
    assert_type(heads["L0H1"].W_Q, Tensor)
    assert_type(heads.layers, tuple[int | float, ...])
    assert_type(heads.scale, float)
    assert_type(heads.b_Q, Tensor | None)
    assert_type(heads.OV, FactoredMatrix)
    assert_type([head.names for head in heads], list[tuple[str, ...]])
    assert_type(heads.pattern(torch.zeros(3, heads.d_model)), Tensor)
    assert_type(ck.stack(heads[:2], heads["L1H3"]), ck.Heads)
    assert_type(ck.figures.signed(heads.W_Q[0]), dict[str, Any])


def tools() -> None:
    model = ck.load_model("two-layer", step=1000)
    heads = ck.heads_of(model)
    tokens = models.heldout_rows(2, 64)
    assert_type(tokens, Tensor)
    assert_type(circuits.composition_scores(heads["L0H1"], heads["L1H3"], "K"), Table)
    assert_type(circuits.copying_score(model).values, Tensor)
    assert_type(circuits.full_qk(model, "L1H3", query="position"), FactoredMatrix)
    assert_type(paths.path_logits(model, tokens, max_order=1).sum(), Tensor)
    assert_type(induction.scores(model, without="L0H0"), Table)
    assert_type(induction.induction_loss(model, without=["L1H3"]), induction.InductionLoss)
    assert_type(residual.decompose(model, tokens).names, tuple[str, ...])
    assert_type(residual.virtual_weights(model, "L0H1", "L1H3.K"), FactoredMatrix)


def conversions_and_toys() -> None:
    converted = ck.to_attention_only(ck.load_model("two-layer-mlp"), heads_per_neuron=5)
    assert_type(converted, TransformerBridge)
    assert_type(conversion.head_sum("gelu", 5).error, float)
    assert_type(conversion.head_sum("silu")(torch.zeros(3)), Tensor)
    task = SkipTrigramTask(5)
    assert_type(task.d_vocab, int)
    original = load_original(4, 5, seed=13)
    assert_type(trigram_verdict(original).superposed, tuple[int, ...])
    assert_type(exercises.check_k_composition(lambda A, W: A).passed, bool)


def mistakes() -> None:
    ck.load_modle("two-layer")  # pyright: ignore[reportAttributeAccessIssue]
    ck.load_model(2)  # pyright: ignore[reportArgumentType]
    ck.load_model("two-layer", checkpoint=1000)  # pyright: ignore[reportCallIssue]
    model = ck.load_model("two-layer")
    heads = ck.heads_of(model)
    heads.layers = (0,)  # pyright: ignore[reportAttributeAccessIssue]
    ck.Heads(heads.names, heads.W_Q, heads.W_K, heads.W_V)  # pyright: ignore[reportCallIssue]
    parts = (heads.names, heads.W_Q, heads.W_K, heads.W_V, heads.W_O)
    ck.Heads(*parts, mask="casual")  # pyright: ignore[reportArgumentType]
    print(heads.W_X)  # pyright: ignore[reportAttributeAccessIssue]
    print(heads.b_Q.shape)  # pyright: ignore[reportOptionalMemberAccess]
    circuits.copying_scores(model)  # pyright: ignore[reportAttributeAccessIssue]
    print(SkipTrigramTask(5).d_vocab.size)  # pyright: ignore[reportAttributeAccessIssue]
