"""QK and OV circuits: what a head looks for, what it writes, and how heads feed each other.

Questions to weights and to frozen patterns live here; a matrix of tokens by tokens is returned as two thin factors. A
question may be added; how scores, norms and rotations come about may not be written here again.
"""

from circuitkit.circuits._composition import composition_scores, random_heads, virtual_head
from circuitkit.circuits._full import copying_score, full_ov, full_qk, top_per_row

__all__ = [
    "composition_scores", "copying_score", "full_ov", "full_qk", "random_heads", "top_per_row", "virtual_head",
]  # fmt: skip
