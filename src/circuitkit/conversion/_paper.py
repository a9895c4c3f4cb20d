"""The constructions of "Attention-Only Transformers", literally: full matrices, the paper's masks, the bias token last."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Count, Finite, must, one_dtype, public, reads


def _is_mask(mask: Tensor) -> Any:
    empty = (mask == 0).all(-1).nonzero().flatten().tolist()
    return not (empty or (mask < 0).any()) or f"1 for an allowed source and 0 elsewhere, and one in every row; rows {empty} are all zero"


somewhere_to_look = must(_is_mask)


@public
@somewhere_to_look
@one_dtype("W_QK", "W_OV")
@reads("W_QK")
@dataclass(frozen=True, eq=False)
class MaskedHead:
    """A masked attention head of Definition 1: `msoftmax(X W_QK X^T, mask) X W_OV`, full square matrices.

    **Source**: "Attention-Only Transformers", below Definition 1.
    """

    W_QK: Float[Tensor, "d_model d_model"]
    W_OV: Float[Tensor, "d_model d_model"]
    mask: Float[Tensor, "pos pos"]
    """1 where a destination (row) may look at a source (column), else 0."""

    def pattern(self, x: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos pos"]:
        """The attention pattern; rows sum to 1."""
        return masked_softmax(x @ self.W_QK @ x.T, self.mask)

    def __call__(self, x: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos d_model"]:
        return self.pattern(x) @ x @ self.W_OV


@public
@somewhere_to_look
def masked_softmax(scores: Float[Tensor, "dst src"], mask: Float[Tensor, "dst src"]) -> Float[Tensor, "dst src"]:
    """`rownorm(exp(scores) * mask)`, computed without overflow.

    **Error**: rounding only. **Source**: Definition 1 of the paper.

    >>> masked_softmax(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]])).tolist()
    [[0.5, 0.0, 0.5]]
    """
    return scores.masked_fill(mask == 0, -torch.inf).softmax(-1)


@public
def direct_sum(left: Float[Tensor, "rows columns"], right: Finite) -> Float[Tensor, "rows_and_1 columns_and_1"]:
    """The paper's `X (+) [right]`: `X` and one number as the diagonal blocks, 0 elsewhere.

    **Source**: "Attention-Only Transformers", notation.

    >>> direct_sum(torch.tensor([[5.0, 7.0]]), 1.0).tolist()
    [[5.0, 7.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return torch.block_diag(left, left.new_tensor([[right]]))


def theorem_mask(n_pos: int, like: Float[Tensor, "..."]) -> Float[Tensor, "pos_and_1 pos_and_1"]:
    """`[[I, 1], [0, 1]]`: every token may look at itself and at the bias token, which is last and sees itself only."""
    mask = torch.eye(n_pos + 1, dtype=like.dtype, device=like.device)
    mask[:, -1] = 1
    return mask


@public
@one_dtype("V1", "V2")
def theorem2(
    V1: Float[Tensor, "d_model d_mlp"],
    V2: Float[Tensor, "d_mlp d_model"],
    n_pos: Count,
    a1: Finite = 1.0,
    a2: Finite = 1.0,
) -> list[MaskedHead]:
    """Theorem 2: heads whose sum on `X (+) [1]` is `a1 SiLU(a2 X V1) V2 (+) [0]`, one per hidden unit.

    `W_QK = a2 [[0, -V1_i], [0, 0]]` and `W_OV = a1 a2 V1_i V2_i (+) [0]`. **Error**: exact; rounding as in the MLP.
    **Source**: Theorem 2 and its appendix proof, two slips set right: the blocks have sizes d_model and 1 (it says N and 1),
    and the token's own score is 0 and the bias token's -x, not the reverse.
    """
    mask, heads = theorem_mask(n_pos, V1), []
    for column, row in zip(V1.T, V2, strict=True):
        W_QK = V1.new_zeros(len(column) + 1, len(column) + 1)
        W_QK[:-1, -1] = -a2 * column
        heads.append(MaskedHead(W_QK, direct_sum(a1 * a2 * torch.outer(column, row), 0.0), mask))
    return heads


@public
def theorem6(W: Float[Tensor, "d_model d_model"], n_pos: Count) -> MaskedHead:
    """Theorem 6: with the identity as mask a head looks at itself only, so it computes `X W` whatever its scores are.

    **Error**: rounding. **Source**: "Attention-Only Transformers", Theorem 6.
    """
    return MaskedHead(torch.zeros_like(W), W, torch.eye(n_pos, dtype=W.dtype, device=W.device))


@public
def theorem7(
    d_model: Count,
    n_pos: Count,
    a1: Finite = 1.0,
    a2: Finite = 1.0,
    residual: bool = False,
    like: Float[Tensor, "..."] | None = None,
) -> list[MaskedHead]:
    """Theorem 7: `d_model` heads whose sum on `X (+) [1]` is `a1 SiLU(a2 X) (+) [0]`, entry by entry.

    `residual=True` adds one head that writes `-X`, so that a skip connection turns `X` into the activation. **Error**: exact.
    **Source**: "Attention-Only Transformers", Theorem 7, whose `X I_N` must be `X I_D`.
    """
    like = torch.zeros(()) if like is None else like
    eye = torch.eye(d_model, dtype=like.dtype, device=like.device)
    heads = theorem2(eye, eye, n_pos, a1, a2)
    return [*heads, theorem6(direct_sum(-eye, 0.0), n_pos + 1)] if residual else heads
