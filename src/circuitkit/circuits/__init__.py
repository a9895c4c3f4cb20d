"""QK and OV circuits: what a head looks for, what it writes, and how heads feed each other.

Questions to weights and to frozen patterns live here; a matrix of tokens by tokens is returned as two thin factors. A
question may be added; how scores, norms and rotations come about may not be written here again.
"""

from circuitkit.circuits._baseline import random_heads
from circuitkit.circuits._bugs import skip_trigram_bugs
from circuitkit.circuits._composition import composition_scores
from circuitkit.circuits._copying import copying_score
from circuitkit.circuits._evidence import corpus_evidence, skip_trigram_statistics
from circuitkit.circuits._full import full_ov, full_qk, top_per_row
from circuitkit.circuits._importance import loss_of_paths, term_importance
from circuitkit.circuits._paths import largest_paths, path_logits
from circuitkit.circuits._score import score_decomposition
from circuitkit.circuits._skip import skip_trigrams
from circuitkit.circuits._virtual import virtual_head

__all__ = [
    "composition_scores", "copying_score", "corpus_evidence", "full_ov", "full_qk", "largest_paths", "loss_of_paths", "path_logits",
    "random_heads", "score_decomposition", "skip_trigram_bugs", "skip_trigram_statistics", "skip_trigrams",
    "term_importance", "top_per_row", "virtual_head",
]  # fmt: skip
