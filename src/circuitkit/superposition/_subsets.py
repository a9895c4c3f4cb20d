"""Does a head's prediction survive the removal of every subset of the other heads? Exact, without trying one.

Notation, for one row: `m_h[u]` is what head `h` adds to the margin of the completion over token `u`, `r[u]` what the
residual stream adds. With the heads of a set S kept next to head `h`, the completion is predicted if and only if
`m_h[u] + sum_{S} m_k[u] + r[u] > 0` for every other token `u`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def margins(
    logits: Float[Tensor, "row *head d_vocab"], completion: Int[Tensor, "row"]
) -> Float[Tensor, "row *head other"]:
    """`logits[completion] - logits[u]` for every `u` but the completion, `[row, ..., d_vocab - 1]`."""
    index = completion.view(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
    difference = logits.gather(-1, index) - logits
    keep = torch.ones(logits.shape[0], logits.shape[-1], dtype=torch.bool, device=logits.device)
    keep.scatter_(1, completion[:, None], False)
    keep = keep.view(-1, *[1] * (logits.ndim - 2), logits.shape[-1]).expand_as(logits)
    return difference[keep].view(*logits.shape[:-1], logits.shape[-1] - 1)


def worst_margins(m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]) -> Float[Tensor, "row head other"]:
    """The smallest margin over each token, among the sets that hold the head: the bracket of `always_predicted`."""
    losses = m.clamp(max=0)
    return m - losses + losses.sum(1, keepdim=True) + r[:, None]


def always_predicted(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]
) -> Bool[Tensor, "row head"]:
    """True where head `h`, kept with *any* set of other heads, predicts the completion. Exact.

    `min_u ( m_h[u] + sum_{k != h} min(0, m_k[u]) + r[u] ) > 0`.

    Proof. Some set fails if and only if for some `u` some set S has `m_h[u] + sum_S m_k[u] + r[u] <= 0`: both are
    "there is", so their order does not matter, and for a fixed `u` the smallest sum over sets takes exactly the negative
    terms. **Cost**: one pass instead of `2^(heads - 1)`.
    """
    return worst_margins(m, r).amin(-1) > 0
