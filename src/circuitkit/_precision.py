"""How finely numbers are kept: half precision is too coarse for decompositions, and not every device has float64."""

import torch
from torch import Tensor, bfloat16, float16

_HALF = (float16, bfloat16)
_COARSE = ("mps",)
"""Devices without float64."""


def full_precision(tensor: Tensor) -> Tensor:
    """The same numbers in float32 where they are in half precision."""
    return tensor.float() if tensor.dtype in _HALF else tensor


def finest(tensor: Tensor) -> Tensor:
    """The same numbers in float64, or in float32 on a device that has nothing finer."""
    return tensor.float() if str(tensor.device).startswith(_COARSE) else tensor.double()


def near(tensor: Tensor) -> bool:
    """Whether a number can be asked for at once: elsewhere, asking waits for all that was begun there."""
    return tensor.device == torch.device("cpu")


def rounding_hint(tensor: Tensor) -> str:
    """What to try first when a comparison failed on numbers in half precision; empty for others."""
    if tensor.dtype not in _HALF:
        return ""
    return f" This model computes in {tensor.dtype}, whose rounding alone can do that: try model.to(torch.float32) first."


def require_same(ours: Tensor, theirs: Tensor, most: float, text: str) -> None:
    """A `ValueError` when what was computed here is not what the model computed, to an absolute difference of `most`."""
    off = float((ours - theirs).detach().abs().max())
    if not off <= most:
        size = float(theirs.detach().abs().max())
        raise ValueError(
            f"{text} (off by {off:.2g}; the largest value is {size:.2g}).{rounding_hint(ours)}"
        )
