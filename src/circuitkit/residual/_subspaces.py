"""The subspaces of the residual stream that heads read from and write to, and the angles between them."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._blocks import product_norms, tiles
from circuitkit._contract import one_dtype, one_stream, public
from circuitkit._heads import Heads
from circuitkit._precision import full_precision

Kind = Literal["Q", "K", "V"]


@public
def reading_basis(heads: Heads, kind: Kind = "V") -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal basis of what each head can read through its queries, keys or values: `x W` sees the column space of `W` alone.

    **Shapes**: `[head, d_model, d_head]`. **Error**: rounding. **Source**: "A Mathematical Framework for Transformer
    Circuits", subspaces and bandwidth.
    """
    name: Any = f"W_{kind}"
    return torch.linalg.qr(full_precision(heads.by_head(name)))[0]


@public
def writing_basis(heads: Heads) -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal basis of what each head can write, the row space of `W_O`.

    **Shapes**: `[head, d_model, d_head]`. **Error**: rounding. **Source**: as `reading_basis`.
    """
    return torch.linalg.qr(full_precision(heads.W_O).transpose(-2, -1))[0]


@public
@one_stream()
@one_dtype("earlier", "later")
def subspace_overlap(earlier: Heads, later: Heads, kind: Kind = "V") -> Float[Tensor, "earlier later"]:
    """Share of each later head's reading subspace that each earlier head can write to, between 0 and 1.

    Mean squared cosine of the principal angles, `||A^T B||_F^2 / d_head` of the later head; times `d_head`, their projection
    kernel. Two random subspaces score `d_head / d_model` (of the earlier head), however strongly they are used. Memory: a GiB
    beside the heads. **Shapes**: `[earlier, later]`. **Error**: rounding. **Source**: this book; angles: Bjorck and Golub 1973.
    """
    out = earlier.W_O.new_zeros(len(earlier), len(later), dtype=full_precision(earlier.W_O[:0]).dtype)
    each = earlier.d_model * max(earlier.d_head, later.d_head)
    makers = (lambda rows: writing_basis(earlier[rows]).mT), (lambda rows: reading_basis(later[rows], kind))
    for where, written, read in tiles(len(earlier), len(later), each, *makers):
        out[where] = product_norms(written, read)
    return out.square_().div_(later.d_head)
