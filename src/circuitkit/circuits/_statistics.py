"""Skip-trigram counts over the text that the shipped models were trained on."""

import json
from functools import cache
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor

from circuitkit._stored import stored_file
from circuitkit.circuits._evidence import Evidence


class SkipTrigramStatistics(NamedTuple):
    """What `skip_trigram_statistics` returns; counted by `tools/train/skip_trigram_statistics.py`.

    **Source**: counted over the training text by `tools/train/skip_trigram_statistics.py`.
    """

    evidence: dict[tuple[int, int, int], Evidence]
    """For the strongest skip trigrams of the one-layer model's heads: counts over the training text."""
    words: Int[Tensor, "triple 5"]
    """Three pieces of a word in a row, `corpus_trigrams` rows: (source, destination, completion, n, hits)."""
    occurring: Int[Tensor, "triple 4"]
    """Crossings of `words` that do occur in the text, (source, destination, completion, hits); no other one does."""
    provenance: dict[str, Any]
    """Window, thresholds, number of tokens, and the hashes of the tokens and of the model's weights."""


@cache
def skip_trigram_statistics() -> SkipTrigramStatistics:
    """The shipped counts. They were made on text the models learned from: evidence of what there was to learn.

    **Source**: counted over the training text by `tools/train/skip_trigram_statistics.py`.
    """
    from safetensors import safe_open

    with safe_open(stored_file("circuits", "skip_trigrams.safetensors"), framework="pt") as table:
        rows = table.get_tensor("evidence").tolist()
        words, occurring = table.get_tensor("words").long(), table.get_tensor("occurring").long()
        provenance = json.loads(table.metadata()["provenance"])
    return SkipTrigramStatistics({tuple(row[:3]): Evidence(*row[3:]) for row in rows}, words, occurring, provenance)
