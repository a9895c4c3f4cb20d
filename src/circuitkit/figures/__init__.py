"""Figures that are right when still: attention views, drawings of circuits, effects beside drawn sets, matplotlib pictures with alt text, and step sliders.

Every figure states its finding in words (`alt`), prints the numbers behind it, and asks no other host for anything. A kind of
figure may be added; it knows numbers, never a model.
"""

from circuitkit.figures._attention import attention
from circuitkit.figures._circuit import circuit
from circuitkit.figures._picture import effects, frames, picture, show, signed, style, unsigned

__all__ = [
    "attention",
    "circuit",
    "effects",
    "frames",
    "picture",
    "show",
    "signed",
    "style",
    "unsigned",
]
