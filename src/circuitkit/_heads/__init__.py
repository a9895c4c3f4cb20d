"""The one noun of the library: a stack of attention heads as a value.

Here lives every formula about one head: QK and OV, scores, patterns, masks, rotations. One may be added that needs nothing
but a head's own weights; what a model is, is asked in anatomy.
"""

from circuitkit._heads._heads import Heads, Turn, allowed_pairs, stack

__all__ = ["Heads", "Turn", "allowed_pairs", "stack"]
