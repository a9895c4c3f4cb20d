"""The subspaces of the residual stream that heads read from and write to, and the angles between them."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._blocks import Thin, joint_rows, product_norms, tiles
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
    makers = (lambda rows: Thin(*2 * [writing_basis(earlier[rows]).mT])), (lambda rows: Thin(*2 * [reading_basis(later[rows], kind).mT]))
    for where, written, read in tiles(len(earlier), len(later), each, *makers):
        out[where] = product_norms(written, read)
    return out.square_().div_(later.d_head)


@public
@one_stream()
@one_dtype("earlier", "later")
def principal_cosines(earlier: Heads, later: Heads, kind: Kind = "V") -> Float[Tensor, " angle"]:
    r"""Cosines of the principal angles between all that some heads can write together and all that others read together, largest first.

    $\sum_i \cos^2\theta_i$ is the projection kernel of the two sets; over the number of angles, the share of the smaller space
    that lies in the larger. Random spaces of dimensions $r \le s$ share $s/d_{model}$. Heads are joined a tile at a time, by
    triangles whose condition is not squared. **Shapes**: as many as the smaller joint space has dimensions. **Error**:
    rounding; directions below it, beside the largest, are in neither space. **Source**: Bjorck and Golub 1973; sets are ours.

    >>> from circuitkit.circuits import random_heads
    >>> both = random_heads(2, 16, 3)
    >>> principal_cosines(both, random_heads(4, 16, 4, seed=1)).shape  # six dimensions, and all sixteen
    torch.Size([6])
    """
    name: Any = f"W_{kind}"
    written = joint_rows(len(earlier), earlier.W_O[:1].numel(), lambda some: full_precision(earlier[some].W_O))
    read = joint_rows(len(later), later.W_O[:1].numel(), lambda some: full_precision(later[some].by_head(name).mT))
    return torch.linalg.svdvals(written @ read.T).clamp(max=1)
