"""Attention-head superposition: the skip-trigram task, models of it, a verdict that can fail, and gated blocks.

Stored results lie in `data` and are made anew by `tools/study`, never edited. A task or a recipe may be added; the verdict
changes only with the chapter.
"""

from circuitkit.superposition._block import GatedBlock as GatedBlock
from circuitkit.superposition._hand import blind_model as blind_model
from circuitkit.superposition._hand import hand_specified as hand_specified
from circuitkit.superposition._hand import one_head_model as one_head_model
from circuitkit.superposition._hand import two_head_model as two_head_model
from circuitkit.superposition._layer import record_layer as record_layer
from circuitkit.superposition._layer import replacing as replacing
from circuitkit.superposition._rates import rate as rate
from circuitkit.superposition._recipe import GATES as GATES
from circuitkit.superposition._recipe import WRITES as WRITES
from circuitkit.superposition._recipe import post_recipe as post_recipe
from circuitkit.superposition._stored import load_gated as load_gated
from circuitkit.superposition._stored import load_original as load_original
from circuitkit.superposition._stored import load_results as load_results
from circuitkit.superposition._task import SkipTrigramTask as SkipTrigramTask
from circuitkit.superposition._toy import ToyModel as ToyModel
from circuitkit.superposition._train import train_gated as train_gated
from circuitkit.superposition._verdict import head_verdict as head_verdict

__all__ = [
    "GATES",
    "GatedBlock",
    "SkipTrigramTask",
    "ToyModel",
    "WRITES",
    "blind_model",
    "hand_specified",
    "head_verdict",
    "load_gated",
    "load_original",
    "load_results",
    "one_head_model",
    "post_recipe",
    "rate",
    "record_layer",
    "replacing",
    "train_gated",
    "two_head_model",
]
