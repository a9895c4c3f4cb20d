"""The shipped models, their text, and one door to models on a hub. Nothing here touches the network by itself.

Weights are written by `tools/train` and checked by their hash when they are read. A way to load may be added here; what the
weights mean may not.
"""

from circuitkit.models._corpus import corpus_provenance as corpus_provenance
from circuitkit.models._corpus import corpus_statistics as corpus_statistics
from circuitkit.models._corpus import heldout_rows as heldout_rows
from circuitkit.models._corpus import heldout_text as heldout_text
from circuitkit.models._load import load_model as load_model
from circuitkit.models._manifest import baselines as baselines
from circuitkit.models._manifest import checkpoints as checkpoints
from circuitkit.models._manifest import list_models as list_models
from circuitkit.models._manifest import model_card as model_card
from circuitkit.models._tokenizer import load_tokenizer as load_tokenizer

__all__ = [
    "baselines",
    "checkpoints",
    "corpus_provenance",
    "corpus_statistics",
    "heldout_rows",
    "heldout_text",
    "list_models",
    "load_model",
    "load_tokenizer",
    "model_card",
]
