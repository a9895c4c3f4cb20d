"""How strongly is a completion predicted with the best and the worst set of heads?

For one row, `m_h[u]` is what head `h` adds to the margin of the completion over token `u`, `r[u]` what the residual stream
adds. With the heads of a set S kept the margin is `M_S[u] = r[u] + sum_S m_k[u]`: its minimum over `u` decides the argmax,
exactly and without trying a set; its soft minimum `L_S = -ln sum_u exp(-M_S[u])` is the log-odds. Those are pairs `(low,
high)`, `[row, head]` each, over the sets that hold the head: equal up to 16 heads, bounds beyond.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EXACT = 16
"""Up to so many heads every set is tried."""
_CELLS = 1 << 22

Pair = tuple[Float[Tensor, "row head"], Float[Tensor, "row head"]]


def margins(logits: Float[Tensor, "row *head d_vocab"], completion: Int[Tensor, "row"]) -> Float[Tensor, "row *head other"]:
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


def always_predicted(m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]) -> Bool[Tensor, "row head"]:
    """True where head `h`, kept with *any* set of other heads, predicts the completion: exact, in one pass.

    `min_u ( m_h[u] + sum_{k != h} min(0, m_k[u]) + r[u] ) > 0`. Proof: some set fails if and only if for some `u` some set S
    has `m_h[u] + sum_S m_k[u] + r[u] <= 0`, and for a fixed `u` the smallest sum takes exactly the negative terms.
    """
    return worst_margins(m, r).amin(-1) > 0


def strength(M: Float[Tensor, "*row other"], odds: bool = True) -> Float[Tensor, "*row"]:
    """Log-odds of the completion, or its smallest margin."""
    return -(-M).logsumexp(-1) if odds else M.amin(-1)


def least(m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]) -> Pair:
    """The smallest log-odds over all sets that hold the head.

    Beyond `EXACT` heads: no set is below `-ln sum_u exp(-w[u])` with `w` of `worst_margins`; the set that attains `min_u w[u]
    = w*` is tried. So `w* - ln(d_vocab - 1) <= low <= high <= w*`.
    """
    if m.shape[1] <= EXACT:
        return (exact := _tried(m, r, True)[..., 0]), exact
    worst = worst_margins(m, r)
    return strength(worst), _at_tokens(m, r, worst, m < 0).amin(-1)


def greatest(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"], odds: bool = True, rounds: int = 40, limit: float | None = None
) -> Pair:
    """The largest log-odds, or smallest margin, over all sets that hold the head.

    No set is above `strength(best)`, `best[u]` its largest margin over `u`; given `limit`, sets are tried only in rows where
    this is. Beyond `EXACT` heads: for weights `p` over tokens, `L_S <= p . M_S - H(p)` and `min_u M_S[u] <= p . M_S`, both
    largest for the heads with `p . m_k > 0`. Each round takes `p` from a mixture of the sets so far (Frank and Wolfe 1956);
    every such set is a lower bound, every such `p` an upper one.
    """
    high = strength(best := -worst_margins(-m, -r), odds)
    if m.shape[1] <= EXACT:
        if (open_ := (high > (-torch.inf if limit is None else limit)).any(1)).any():
            high[open_] = _tried(m[open_], r[open_], odds)[..., 1]
        return high, high
    low = _at_tokens(m, r, best, m > 0, odds).amax(-1)
    mixture = (m.sum(1) + r)[:, None].expand_as(m)
    for step in range(rounds):
        p = (-mixture if odds else -8 * mixture).softmax(-1)
        keep = (torch.einsum("rhu,rku->rhk", p, m) > 0).to(m.dtype)
        keep.diagonal(dim1=1, dim2=2).fill_(1)
        M = torch.einsum("rhk,rku->rhu", keep, m) + r[:, None]
        low = torch.maximum(low, strength(M, odds))
        high = torch.minimum(high, (p * M).sum(-1) - torch.special.entr(p).sum(-1) * odds)
        mixture = mixture + 2 / (step + 2) * (M - mixture)
    return low, torch.maximum(low, high)  # rounding may cross them where they meet


def _at_tokens(m: Tensor, r: Tensor, margin: Tensor, keep: Tensor, odds: bool = True, few: int = 16) -> Float[Tensor, "row head set"]:
    """The strength of the sets `keep[row, :, u]`, with the head, for the tokens `u` where its `margin` is smallest."""
    u = margin.topk(min(few, m.shape[2]), largest=False).indices  # [row, head, set]
    kept = keep[:, None].expand(-1, m.shape[1], -1, -1).gather(3, u[:, :, None].expand(-1, -1, m.shape[1], -1)).to(m.dtype)
    kept.diagonal(dim1=1, dim2=2).fill_(1)
    return strength(torch.einsum("rhks,rku->rhsu", kept, m) + r[:, None, None], odds)


def _tried(m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"], odds: bool) -> Float[Tensor, "row head 2"]:
    """The smallest and largest strength over all sets that hold the head; every set is tried.

    With the heads in two halves, `sum_u exp(-M[u])` of all sets is one product of two tables, `[2^(n/2), token]` each. Where
    exponents could leave float64, tokens are taken one by one.
    """
    half = m.shape[1] // 2
    halves = [m[:, :half], m[:, half:]]
    bits = [(torch.arange(2 ** part.shape[1])[:, None] >> torch.arange(part.shape[1]) & 1).to(m.device) for part in halves]
    out = []
    for rows in torch.arange(len(m)).split(max(1, _CELLS // max(2 ** m.shape[1], len(bits[1]) * m.shape[2]))):
        first, second = (torch.einsum("sk,rku->rsu", b.to(m.dtype), part[rows]) for b, part in zip(bits, halves, strict=True))
        first = first + r[rows, None]
        low = [part.amin(-1, keepdim=True) for part in (first, second)]
        if odds and max(float((part - at).max()) for part, at in zip((first, second), low, strict=True)) < 600:
            table = low[0] + low[1].mT - ((low[0] - first).exp() @ (low[1] - second).exp().mT).log()
        else:
            table = first[:, :, None, 0] + second[:, None, :, 0]
            for u in range(1, m.shape[2]):
                other = first[:, :, None, u] + second[:, None, :, u]
                table = -torch.logaddexp(-table, -other) if odds else torch.minimum(table, other)
        ends = []
        for b, across in zip(bits, (2, 1), strict=True):
            without = (b == 0)[None]
            smallest = table.amin(across)[..., None].masked_fill(without, torch.inf).amin(1)
            largest = table.amax(across)[..., None].masked_fill(without, -torch.inf).amax(1)
            ends.append(torch.stack([smallest, largest], -1))
        out.append(torch.cat(ends, 1))
    return torch.cat(out)
