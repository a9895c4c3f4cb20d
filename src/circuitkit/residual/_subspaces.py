"""The subspaces of the residual stream that heads read from and write to, and the angles between them."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._blocks import pieces, product_norms
from circuitkit._contract import must, one_dtype, one_stream, public
from circuitkit._heads import Heads
from circuitkit._precision import full_precision

Kind = Literal["Q", "K", "V"]
_MOST_NUMBERS = 2**27
"""In the bases that are kept at once, on either side."""


@public
def reading_basis(heads: Heads, kind: Kind = "V") -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal basis of what each head can read through its queries, keys or values (`kind` "Q", "K" or "V").

    A head sees `x W`, so it sees the projection of `x` on the column space of `W` and nothing else.

    **Shapes**: `[head, d_model, d_head]`, columns orthonormal. **Error**: rounding. **Source**: "A Mathematical
    Framework for Transformer Circuits", subspaces and the bandwidth of the residual stream.
    """
    name: Any = f"W_{kind}"
    return torch.linalg.qr(full_precision(heads.by_head(name)))[0]


@public
def writing_basis(heads: Heads) -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal basis of what each head can write: the row space of `W_O`.

    **Shapes**: `[head, d_model, d_head]`, columns orthonormal. **Error**: rounding. **Source**: "A Mathematical
    Framework for Transformer Circuits", subspaces and the bandwidth of the residual stream.
    """
    return torch.linalg.qr(full_precision(heads.W_O).transpose(-2, -1))[0]


def _is_orthonormal(basis: Tensor) -> Any:
    B = full_precision(basis)
    off = float((B.mT @ B - torch.eye(B.shape[-1]).to(B)).abs().max()) if B.numel() else 1.0
    return off <= 1e-2 or f"orthonormal columns (these are off by {off:.2g}), as torch.linalg.qr gives them"


@public
@one_dtype("a", "b")
@must(_is_orthonormal, "a")
@must(_is_orthonormal, "b")
def principal_angles(
    a: Float[Tensor, "*batch d_model rank_a"], b: Float[Tensor, "*batch d_model rank_b"]
) -> Float[Tensor, "*batch rank"]:
    """Angles in radians between two subspaces given by orthonormal bases, smallest first.

    `cos(angle_i)` are the singular values of `A^T B` (Bjorck and Golub 1973). 0: a shared direction; pi/2: orthogonal.
    Angles below 1e-4 (float32) or 1e-8 (float64) are not resolved by the cosine.

    **Shapes**: `A[d_model, a]` and `B[d_model, b]` give `min(a, b)` angles. **Source**: Bjorck and Golub 1973.
    """
    return torch.linalg.svdvals(full_precision(a).transpose(-2, -1) @ full_precision(b)).clamp(max=1.0).acos()


@public
@one_stream()
@one_dtype("earlier", "later")
def subspace_overlap(earlier: Heads, later: Heads, kind: Kind = "V") -> Float[Tensor, "earlier later"]:
    """Share of each later head's reading subspace that each earlier head can write to, between 0 and 1.

    Mean squared cosine of the principal angles, `||A^T B||_F^2 / d_head` of the later head. Two random subspaces score
    `d_head / d_model` (of the earlier head). Depends on the subspaces only, not on how strongly they are used. Times
    `d_head` it is their projection kernel. Memory: a GiB beside the heads, however many there are.

    **Shapes**: `[earlier, later]`. **Error**: rounding. **Source**: this book, from `principal_angles`.
    """
    each, rows = earlier.d_model * max(earlier.d_head, later.d_head), []
    for some in pieces(len(earlier), each, _MOST_NUMBERS):
        written = writing_basis(earlier[some]).mT
        others = (reading_basis(later[others], kind) for others in pieces(len(later), each, _MOST_NUMBERS))
        rows.append(torch.cat([product_norms(written, read) for read in others], dim=1))
    return torch.cat(rows).square() / later.d_head
