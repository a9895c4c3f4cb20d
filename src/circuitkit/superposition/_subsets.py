"""Does a head's prediction survive the removal of every subset of the other heads? Exact, without trying them all.

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


def always_predicted(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]
) -> Bool[Tensor, "row head"]:
    """True where head `h`, kept with *any* set of other heads, predicts the completion. Exact.

    `min_u ( m_h[u] + sum_{k != h} min(0, m_k[u]) + r[u] ) > 0`.

    Proof. Some set fails if and only if for some `u` some set S has `m_h[u] + sum_S m_k[u] + r[u] <= 0`: both are
    "there is", so their order does not matter, and for a fixed `u` the smallest sum over sets takes exactly the negative
    terms. **Cost**: one pass instead of `2^(heads - 1)`.
    """
    losses = m.clamp(max=0)
    worst = m - losses + losses.sum(1, keepdim=True) + r[:, None]
    return worst.amin(-1) > 0


def never_predicted(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]
) -> Bool[Tensor, "row head"]:
    """True where head `h`, kept with any set of other heads, does *not* predict the completion. Exact.

    Here the quantifiers clash (for every set there is a `u`), so two bounds decide most rows and the rest are counted:

    - if for some `u` even the largest sum `m_h[u] + sum_{k != h} max(0, m_k[u]) + r[u]` is not above 0, that `u` beats
      the completion whatever is kept: True;
    - if one of two sets predicts it (the head alone, or with every head that helps at the head's weakest `u`): False;
    - otherwise all `2^(heads - 1)` sets are tried, for these rows only.
    """
    gains = m.clamp(min=0)
    best = m - gains + gains.sum(1, keepdim=True) + r[:, None]
    never = best.amin(-1) <= 0
    alone = m + r[:, None]
    weakest = alone.argmin(-1, keepdim=True)  # [row, head, 1]
    helps = m.gather(-1, weakest[..., 0][:, None].expand(-1, m.shape[1], -1).transpose(1, 2)).transpose(1, 2)
    # helps[row, k, h]: what head k adds at the weakest token of head h.
    keep = (helps > 0).to(m.dtype)
    keep.diagonal(dim1=1, dim2=2).zero_()
    helped = alone + torch.einsum("rkh,rku->rhu", keep, m)
    sometimes = (alone.amin(-1) > 0) | (helped.amin(-1) > 0)
    open_rows, open_heads = (~never & ~sometimes).nonzero(as_tuple=True)
    if len(open_rows):
        never[open_rows, open_heads] = ~_some_set_predicts(m[open_rows], r[open_rows], open_heads)
    return never


def _some_set_predicts(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"], head: Int[Tensor, "row"], chunk: int = 1 << 22
) -> Bool[Tensor, "row"]:
    """For each row, whether any set that contains `head[row]` predicts the completion; every set is tried."""
    n_heads = m.shape[1]
    if n_heads > 24:
        raise ValueError(f"{len(m)} rows need all subsets of {n_heads} heads, more than 2^23 each; give fewer heads.")
    sets = (torch.arange(2**n_heads)[:, None] >> torch.arange(n_heads) & 1).to(m.dtype)
    found = torch.zeros(len(m), dtype=torch.bool)
    rows = max(1, chunk // (len(sets) * m.shape[2]))
    for part in torch.arange(len(m)).split(rows):
        total = torch.einsum("sk,rku->rsu", sets, m[part]) + r[part, None]
        has_head = sets[:, head[part]].T > 0
        found[part] = ((total.amin(-1) > 0) & has_head).any(1)
    return found


def brute_force(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]
) -> Float[Tensor, "row head set"]:
    """For every head and every set of other heads, 1.0 where the completion is predicted: `[row, head, 2^(heads-1)]`.

    What the closed forms are checked against and timed against. Memory and time grow as `heads * 2^(heads - 1)`.
    """
    n_heads = m.shape[1]
    out = []
    for head in range(n_heads):
        others = [k for k in range(n_heads) if k != head]
        kept = []
        for code in range(2 ** (n_heads - 1)):
            members = [head] + [k for bit, k in enumerate(others) if code >> bit & 1]
            kept.append((m[:, members].sum(1) + r).amin(-1) > 0)
        out.append(torch.stack(kept, 1))
    return torch.stack(out, 1).to(m.dtype)
