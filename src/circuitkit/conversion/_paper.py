""" "Attention-Only Transformers", literally: full matrices, the paper's masks, the bias token last. And Theorem 4's false
step, LayerNorm of a stream with a bias coordinate, with the norms that repair it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Count, Finite, NonNegative, must, one_dtype, public, reads
from circuitkit.anatomy import Norm


def _is_mask(mask: Tensor) -> Any:
    empty = (mask == 0).all(-1).nonzero().flatten().tolist()
    return (
        not (empty or (mask < 0).any())
        or f"1 for an allowed source and 0 elsewhere, and one in every row; rows {empty} are all zero"
    )


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
def masked_softmax(
    scores: Float[Tensor, "dst src"], mask: Float[Tensor, "dst src"]
) -> Float[Tensor, "dst src"]:
    """`rownorm(exp(scores) * mask)`, computed without overflow.

    **Error**: rounding only. **Source**: Definition 1 of the paper.

    >>> masked_softmax(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]])).tolist()
    [[0.5, 0.0, 0.5]]
    """
    return scores.masked_fill(mask == 0, -torch.inf).softmax(-1)


@public
def direct_sum(
    left: Float[Tensor, "rows columns"], right: Finite
) -> Float[Tensor, "rows_and_1 columns_and_1"]:
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


AnyNorm = Callable[[Tensor], Tensor]


@public
def layer_norm(
    x: Float[Tensor, "*batch d_model"], eps: NonNegative = 0.0
) -> Float[Tensor, "*batch d_model"]:
    """Rows with mean 0 and mean square 1; no gain, no bias.

    `(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)` for each row. **Source**: Ba, Kiros and Hinton 2016.
    """
    return Norm(None, eps=eps)(x)


@public
def rms_norm(
    x: Float[Tensor, "*batch d_model"], eps: NonNegative = 0.0
) -> Float[Tensor, "*batch d_model"]:
    """Rows with mean square 1; no gain.

    `x / sqrt(mean(x^2) + eps)` for each row. **Source**: Zhang and Sennrich 2019.
    """
    return Norm(None, eps=eps, centre=False)(x)


@public
def norm_of_first(norm: AnyNorm, n_extra: Count = 1) -> AnyNorm:
    """Repair (c), for every norm: normalise the original coordinates, leave the last `n_extra` as they are.

    `norm_of_first(norm)(X (+) [1]) = norm(X) (+) [1]`, where the norm of zeros is taken to be zeros: what a converted model
    does. **Error**: exact. **Source**: this book, a repair of Theorem 4.
    """

    @public
    @must(
        lambda x: x.shape[-1] > n_extra or f"more than {n_extra} coordinates, the extra ones last"
    )
    def repaired(
        x: Float[Tensor, "*batch d_model_and_extra"],
    ) -> Float[Tensor, "*batch d_model_and_extra"]:
        stream, extra = x[..., :-n_extra], x[..., -n_extra:]
        silent = (stream == 0).all(-1, keepdim=True)
        normed = norm(torch.where(silent, torch.ones_like(stream), stream))
        return torch.cat([torch.where(silent, torch.zeros_like(normed), normed), extra], -1)

    return repaired


@public
def rms_with_gain(d_model: Count, eps: NonNegative = 0.0) -> AnyNorm:
    """Repair (a), RMSNorm on all `D+1` coordinates with a fixed gain: exact on `X (+) [1]`.

    A token's bias coordinate 0 only dilutes its mean square: gain `sqrt(D/(D+1))` on the stream, and an epsilon inside the
    root shrinks by D/(D+1) to `eps'`. The bias token's gain is `sqrt(1/(D+1) + eps')`. **Error**: rounding. **Source**: this
    book, a repair of Theorem 4.
    """
    return _with_gain(rms_norm, d_model, 1, eps)


@public
def centred_with_gain(d_model: Count, eps: NonNegative = 0.0) -> AnyNorm:
    """Repair (b), LayerNorm on `D+2` coordinates: exact when rows are centred and the bias token is `(1, -1)`.

    Writing weights whose rows have mean 0 keep the stream centred; the two bias coordinates cancel in every mean. Gains
    `sqrt(D/(D+2))` on the stream, `sqrt(2/(D+2) + eps')` on the two. **Shapes**: the function keeps `[..., D+2]`.
    **Error**: rounding. **Source**: this book, a repair of Theorem 4.
    """
    return _with_gain(layer_norm, d_model, 2, eps)


def _with_gain(
    norm: Callable[[Tensor, float], Tensor], d_model: int, n_extra: int, eps: float
) -> Any:
    size = d_model + n_extra
    eps_inside = eps * d_model / size
    gain = torch.full((size,), math.sqrt(d_model / size), dtype=torch.float64)
    gain[d_model:] = math.sqrt(n_extra / size + eps_inside)

    @public
    @must(
        lambda x: (
            x.shape[-1] == len(gain)
            or f"[..., {len(gain)}], the stream with its bias coordinates last"
        )
    )
    def gained(x: Float[Tensor, "*batch d_stream"]) -> Float[Tensor, "*batch d_stream"]:
        return norm(x, eps_inside) * gain.to(x)

    return gained


def _in_the_stream(x: Tensor, layers: Sequence[Sequence[MaskedHead]]) -> Any:
    alike = all(
        (head.W_QK.dtype, len(head.W_QK)) == (x.dtype, x.shape[1])
        for heads in layers
        for head in heads
    )
    return alike or "heads of x's width and dtype"


@public
@must(_in_the_stream)
def post_norm_layers(
    x: Float[Tensor, "pos d_model"],
    layers: Sequence[Sequence[MaskedHead]],
    norm: AnyNorm,
    skip: bool = True,
) -> list[Float[Tensor, "pos d_model"]]:
    """The paper's transformer: `X_{j+1} = norm(X_j + sum_i h_{j,i}(X_j))`, the stream before and after every layer.

    `skip=False` leaves out `X_j`: the bias token is zeroed by the first converted layer, and from the second on every neuron sees
    scores 0 and outputs half its input. **Source**: "Attention-Only Transformers", definition of a transformer and Remark 5.
    """
    stream = [x]
    for heads in layers:
        written = torch.stack([head(stream[-1]) for head in heads]).sum(0)
        stream.append(norm(stream[-1] + written if skip else written))
    return stream
