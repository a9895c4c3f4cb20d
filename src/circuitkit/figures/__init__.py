"""Figures that are right when still: attention views, drawings of circuits, matplotlib pictures with alt text, and step sliders.

Every figure states its finding in words (`alt`), prints the numbers behind it, and asks no other host for anything. A kind
of figure may be added; it knows numbers, never a model.
"""

from ._attention import attention as attention
from ._circuit import circuit as circuit
from ._frames import frames as frames
from ._picture import picture as picture
from ._picture import show as show
from ._style import signed as signed
from ._style import style as style
from ._style import unsigned as unsigned

__all__ = [
    "attention",
    "circuit",
    "frames",
    "picture",
    "show",
    "signed",
    "style",
    "unsigned",
]
