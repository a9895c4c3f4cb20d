"""Constructions of "Attention-Only Transformers" that a claim recomputes and nothing else needs."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from circuitkit import Heads
from circuitkit.conversion import MaskedHead, direct_sum


def bias_trick(
    V1: Float[Tensor, "d_model d_mlp"],
    b_in: Float[Tensor, " d_mlp"],
    V2: Float[Tensor, "d_mlp d_model"],
) -> tuple[Float[Tensor, "d_model_and_1 d_mlp"], Float[Tensor, "d_mlp d_model_and_1"]]:
    """The bias-free weights that act on `[X | 1]` as `(V1, b_in, V2)` act on `X`, and write 0 to the column of ones.

    The paper's "without loss of generality". It needs that every layer keeps the column, and it leaves out `b_out`,
    which is a Theorem 6 head of its own: it reads the column of ones and writes `b_out`.

    **Source**: "Attention-Only Transformers", proof of Theorem 4.
    """
    return torch.cat([V1, b_in[None]]), torch.cat([V2, V2.new_zeros(len(V2), 1)], 1)


def remark3(
    V1: Float[Tensor, "d_model d_mlp"],
    V2: Float[Tensor, "d_mlp d_model"],
    a1: float = 1.0,
    a2: float = 1.0,
) -> Heads:
    """Remark 3: Theorem 2's matrices as rank-1 factors, in the library's convention, with the bias token first.

    `W_Q = W_V = a2 [V1_i | 0]`, `W_K = [0 | -1]`, `W_O = a1 [V2_i | 0]`. The paper's `W_K` carries `sqrt(D+1)` because
    it divides scores by `sqrt(D+1)`; libraries divide by `sqrt(d_head)`, which is 1 here. `W_Q = W_V` and a shared
    `W_K` leave two vectors to store per neuron, as many numbers as the MLP has.

    **Source**: "Attention-Only Transformers", Remark 3.
    """
    reads = torch.cat([a2 * V1.T, V1.new_zeros(V1.shape[1], 1)], 1)[..., None]
    keys = torch.zeros_like(reads)
    keys[:, -1] = -1
    writes = torch.cat([a1 * V2, V2.new_zeros(len(V2), 1)], 1)[:, None]
    names = tuple(f"L0N{neuron}" for neuron in range(V1.shape[1]))
    return Heads(names, reads, keys, reads.clone(), writes, scale=1.0, mask="self_or_first")


def augmented_head(
    W_QK: Float[Tensor, "d_model d_model"],
    W_OV: Float[Tensor, "d_model d_model"],
    mask: Float[Tensor, "pos pos"],
) -> MaskedHead:
    """An ordinary head made to ignore the bias token: `W_QK (+) [1]`, `W_OV (+) [0]`, `mask (+) [1]` (Theorem 4).

    **Error**: none. **Source**: "Attention-Only Transformers", proof of Theorem 4.
    """
    return MaskedHead(direct_sum(W_QK, 1.0), direct_sum(W_OV, 0.0), direct_sum(mask, 1.0))


def mask_as_weights(
    mask: Bool[Tensor, "dst src"], omega: float
) -> tuple[Float[Tensor, "dst dst"], Float[Tensor, "src src"]]:
    """Any mask as weights: position queries `W_Q` and keys `W_K` whose scores are 0 where allowed, `-omega` elsewhere.

    Positions are one-hot. A forbidden source keeps at most `exp(-omega + spread)` of an allowed one's weight, where
    `spread` is the range of the ordinary scores, so a row's pattern is wrong by at most `2 n_pos exp(spread - omega)`.
    **Source**: the third result in the abstract of the published paper; the post's 2 Omega is a case of it.
    """
    scores = torch.where(mask, 0.0, -omega)
    return scores, torch.eye(mask.shape[1], dtype=scores.dtype, device=scores.device)
