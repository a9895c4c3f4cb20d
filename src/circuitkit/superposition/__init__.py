"""Attention-head superposition: the skip-trigram task, models of it, a verdict that can fail, and gated blocks.

Stored results lie in `data` and are made anew by `tools/study`, never edited. A task or a recipe may be added; the verdict
changes only with the chapter.
"""

from circuitkit.superposition._block import GatedBlock
from circuitkit.superposition._hand import blind_model, hand_specified, one_head_model, two_head_model
from circuitkit.superposition._layer import record_layer, replacing
from circuitkit.superposition._recipe import GATES, LORSA, WRITES, post_recipe
from circuitkit.superposition._stored import load_gated, load_original, load_results, rate
from circuitkit.superposition._task import SkipTrigramTask
from circuitkit.superposition._toy import ToyModel
from circuitkit.superposition._train import train_gated
from circuitkit.superposition._verdict import head_verdict

__all__ = [
    "GATES", "GatedBlock", "LORSA", "SkipTrigramTask", "ToyModel", "WRITES", "blind_model", "hand_specified",
    "head_verdict", "load_gated", "load_original", "load_results", "one_head_model", "post_recipe", "rate",
    "record_layer", "replacing", "train_gated", "two_head_model",
]  # fmt: skip
