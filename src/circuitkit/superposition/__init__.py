"""Attention-head superposition: gated blocks, and the verdict on which head carries which rule."""

from circuitkit.superposition.block import (
    GATES,
    WRITES,
    GatedBlock,
    record_layer,
    train_gated,
    with_gated_layer,
)
from circuitkit.superposition.verdict import head_logits, head_verdict

__all__ = [
    "GATES",
    "WRITES",
    "GatedBlock",
    "head_logits",
    "head_verdict",
    "record_layer",
    "train_gated",
    "with_gated_layer",
]
