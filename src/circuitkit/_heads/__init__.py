"""The former home of `circuitkit.heads`."""

from circuitkit.heads import Heads, Rotary, allowed_pairs, stack

__all__ = ["Heads", "Rotary", "allowed_pairs", "stack"]
