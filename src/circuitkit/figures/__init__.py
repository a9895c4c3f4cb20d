"""Figures that are complete when they stand still: pictures, attention patterns and circuits.

Each has an alt text, stores the numbers behind it, and loads nothing from another host. A figure
receives numbers and names, never a model.
"""

from circuitkit.figures.attention_view import attention
from circuitkit.figures.circuit_drawing import circuit
from circuitkit.figures.pictures import picture, show, signed, style
from circuitkit.figures.token_diagram import COLORS, token_diagram

__all__ = [
    "COLORS",
    "attention",
    "circuit",
    "picture",
    "show",
    "signed",
    "style",
    "token_diagram",
]
