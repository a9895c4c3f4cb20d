"""Figures that are right when still: attention views, matplotlib pictures with alt text, and step sliders.

Every figure states its finding in words (`alt`), prints the numbers behind it, and asks no other host for anything.
"""

from ._attention import Attention as Attention
from ._attention import attention as attention
from ._frames import Frames as Frames
from ._frames import frames as frames
from ._mark import mark as mark
from ._picture import Picture as Picture
from ._picture import picture as picture
from ._picture import show as show
from ._style import PALETTE as PALETTE
from ._style import signed as signed
from ._style import style as style
from ._style import unsigned as unsigned

__all__ = [
    "PALETTE",
    "Attention",
    "Frames",
    "Picture",
    "attention",
    "frames",
    "mark",
    "picture",
    "show",
    "signed",
    "style",
    "unsigned",
]
