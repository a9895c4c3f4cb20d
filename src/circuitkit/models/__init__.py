"""The shipped models, their text, and one door to models on a hub. Nothing here touches the network by itself.

Weights are written by `studies/edition-2/train` and checked by their hash when they are read. A way to load may be added here; what the
weights mean may not.
"""

from circuitkit.models._corpus import (
    corpus_provenance,
    corpus_statistics,
    heldout_rows,
    heldout_text,
)
from circuitkit.models._load import (
    baselines,
    checkpoints,
    list_models,
    load_model,
    load_tokenizer,
    model_card,
)

__all__ = [
    "baselines", "checkpoints", "corpus_provenance", "corpus_statistics", "heldout_rows", "heldout_text", "list_models",
    "load_model", "load_tokenizer", "model_card",
]  # fmt: skip
