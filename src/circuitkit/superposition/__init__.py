"""Attention-head superposition: the skip-trigram task, toy models, gated blocks, and the verdict."""

from circuitkit.superposition.block import (
    GATES,
    WRITES,
    GatedBlock,
    load_gated,
    post_recipe,
    record_layer,
    train_gated,
    with_gated_layer,
)
from circuitkit.superposition.task import SkipTrigramTask
from circuitkit.superposition.toys import (
    blind_model,
    hand_specified,
    head_logits,
    load_original,
    load_results,
    one_head_model,
    toy_model,
    two_head_model,
)
from circuitkit.superposition.verdict import head_verdict

__all__ = [
    "GATES",
    "WRITES",
    "GatedBlock",
    "SkipTrigramTask",
    "blind_model",
    "hand_specified",
    "head_logits",
    "head_verdict",
    "load_gated",
    "load_original",
    "load_results",
    "one_head_model",
    "post_recipe",
    "record_layer",
    "toy_model",
    "train_gated",
    "two_head_model",
    "with_gated_layer",
]
