"""Attention-head superposition: gated blocks, and the verdict on which head carries which rule."""

from circuitkit.superposition.block import GATES, WRITES, GatedBlock, Recipe
from circuitkit.superposition.gated_training import (
    GatedRuns,
    LayerRecord,
    record_layer,
    train_gated,
)
from circuitkit.superposition.transplant import with_gated_layer
from circuitkit.superposition.verdict import Verdict, head_logits, head_verdict

__all__ = [
    "GATES",
    "WRITES",
    "GatedBlock",
    "GatedRuns",
    "LayerRecord",
    "Recipe",
    "Verdict",
    "head_logits",
    "head_verdict",
    "record_layer",
    "train_gated",
    "with_gated_layer",
]
