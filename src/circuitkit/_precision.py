"""Half precision: too coarse for eigenvalues and decompositions, and sometimes the reason why a check fails."""

from torch import Tensor, bfloat16, float16

_HALF = (float16, bfloat16)


def full_precision(tensor: Tensor) -> Tensor:
    """The same numbers in float32 where they are in half precision."""
    return tensor.float() if tensor.dtype in _HALF else tensor


def rounding_hint(tensor: Tensor) -> str:
    """What to try first when a comparison failed on numbers in half precision; empty for others."""
    if tensor.dtype not in _HALF:
        return ""
    return (
        f" This model computes in {tensor.dtype}, whose rounding alone can do that: try model.to(torch.float32) first."
    )


def require_same(ours: Tensor, theirs: Tensor, most: float, text: str) -> None:
    """A `ValueError` when what was computed here is not what the model computed, to an absolute difference of `most`."""
    off = float((ours - theirs).detach().abs().max())
    if not off <= most:
        size = float(theirs.detach().abs().max())
        raise ValueError(f"{text} (off by {off:.2g}; the largest value is {size:.2g}).{rounding_hint(ours)}")
