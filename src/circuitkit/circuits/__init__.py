"""QK and OV circuits: what a head looks for, what it writes, and how heads feed each other."""

from circuitkit.circuits._baseline import random_heads as random_heads
from circuitkit.circuits._composition import Composition as Composition
from circuitkit.circuits._composition import composition_scores as composition_scores
from circuitkit.circuits._virtual import virtual_head as virtual_head

__all__ = ["Composition", "composition_scores", "random_heads", "virtual_head"]
