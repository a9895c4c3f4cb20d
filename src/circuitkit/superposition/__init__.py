"""Attention-head superposition: the skip-trigram task, models of it, a verdict that can fail, and gated blocks."""

from circuitkit.superposition._block import GatedBlock as GatedBlock
from circuitkit.superposition._coherent import OVCoherentTask as OVCoherentTask
from circuitkit.superposition._hand import blind_model as blind_model
from circuitkit.superposition._hand import hand_specified as hand_specified
from circuitkit.superposition._hand import ideal_model as ideal_model
from circuitkit.superposition._hand import one_head_model as one_head_model
from circuitkit.superposition._hand import two_head_model as two_head_model
from circuitkit.superposition._layer import GatedLayer as GatedLayer
from circuitkit.superposition._layer import LayerRecord as LayerRecord
from circuitkit.superposition._layer import record_layer as record_layer
from circuitkit.superposition._layer import replacing as replacing
from circuitkit.superposition._original import train_original as train_original
from circuitkit.superposition._rates import Rate as Rate
from circuitkit.superposition._rates import rate as rate
from circuitkit.superposition._recipe import GATES as GATES
from circuitkit.superposition._recipe import WRITES as WRITES
from circuitkit.superposition._recipe import Recipe as Recipe
from circuitkit.superposition._recipe import post_recipe as post_recipe
from circuitkit.superposition._stored import load_gated as load_gated
from circuitkit.superposition._stored import load_original as load_original
from circuitkit.superposition._stored import load_results as load_results
from circuitkit.superposition._sweep import load_table as load_table
from circuitkit.superposition._sweep import sweep as sweep
from circuitkit.superposition._task import SkipTrigramTask as SkipTrigramTask
from circuitkit.superposition._toy import ToyModel as ToyModel
from circuitkit.superposition._train import GatedModel as GatedModel
from circuitkit.superposition._train import GatedRuns as GatedRuns
from circuitkit.superposition._train import train_gated as train_gated
from circuitkit.superposition._verdict import Verdict as Verdict
from circuitkit.superposition._verdict import head_verdict as head_verdict

__all__ = [
    "GATES",
    "GatedBlock",
    "GatedLayer",
    "GatedModel",
    "GatedRuns",
    "LayerRecord",
    "OVCoherentTask",
    "Rate",
    "Recipe",
    "SkipTrigramTask",
    "ToyModel",
    "Verdict",
    "WRITES",
    "blind_model",
    "hand_specified",
    "head_verdict",
    "ideal_model",
    "load_gated",
    "load_original",
    "load_results",
    "load_table",
    "one_head_model",
    "post_recipe",
    "rate",
    "record_layer",
    "replacing",
    "sweep",
    "train_gated",
    "train_original",
    "two_head_model",
]
