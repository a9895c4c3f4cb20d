"""Attention-head superposition: the skip-trigram task, models of it, a verdict that can fail, and gated blocks.

Stored results lie in `data` and are made anew by `studies/edition-2/study`, never edited. A task or a recipe may be added; the verdict
changes only with the chapter.
"""

from circuitkit.superposition._block import GATES, LORSA, WRITES, GatedBlock, post_recipe
from circuitkit.superposition._given import (
    blind_model,
    hand_specified,
    load_gated,
    load_original,
    load_results,
    one_head_model,
    rate,
    two_head_model,
)
from circuitkit.superposition._layer import record_layer, replacing
from circuitkit.superposition._task import SkipTrigramTask, ToyModel
from circuitkit.superposition._train import train_gated
from circuitkit.superposition._verdict import head_verdict

__all__ = [
    "GATES", "GatedBlock", "LORSA", "SkipTrigramTask", "ToyModel", "WRITES", "blind_model", "hand_specified",
    "head_verdict", "load_gated", "load_original", "load_results", "one_head_model", "post_recipe", "rate",
    "record_layer", "replacing", "train_gated", "two_head_model",
]  # fmt: skip
