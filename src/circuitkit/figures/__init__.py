"""Figures that are right when still: attention views, drawings of circuits, effects beside drawn sets, matplotlib pictures with alt text, and step sliders.

Every figure states its finding in words (`alt`), prints the numbers behind it, and asks no other host for anything. A kind of
figure may be added; it knows numbers, never a model.
"""

from ._attention import attention
from ._circuit import circuit
from ._effects import effects
from ._frames import frames
from ._picture import picture, show
from ._style import signed, style, unsigned

__all__ = ["attention", "circuit", "effects", "frames", "picture", "show", "signed", "style", "unsigned"]
