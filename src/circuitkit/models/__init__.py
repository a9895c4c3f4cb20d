"""The shipped models, their text, and one door to models on a hub. Nothing here touches the network by itself."""

from circuitkit.models._corpus import CorpusStatistics as CorpusStatistics
from circuitkit.models._corpus import corpus_provenance as corpus_provenance
from circuitkit.models._corpus import corpus_statistics as corpus_statistics
from circuitkit.models._corpus import heldout_rows as heldout_rows
from circuitkit.models._corpus import heldout_text as heldout_text
from circuitkit.models._corpus import heldout_tokens as heldout_tokens
from circuitkit.models._load import load_model as load_model
from circuitkit.models._manifest import baselines as baselines
from circuitkit.models._manifest import checkpoints as checkpoints
from circuitkit.models._manifest import list_models as list_models
from circuitkit.models._manifest import model_card as model_card
from circuitkit.models._tokenizer import load_tokenizer as load_tokenizer

__all__ = [
    "CorpusStatistics",
    "baselines",
    "checkpoints",
    "corpus_provenance",
    "corpus_statistics",
    "heldout_rows",
    "heldout_text",
    "heldout_tokens",
    "list_models",
    "load_model",
    "load_tokenizer",
    "model_card",
]
