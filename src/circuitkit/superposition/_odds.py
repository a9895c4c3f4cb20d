"""How strongly is a completion predicted with the best and the worst set of heads? Exact to 16 heads, bounded beyond.

With the heads of a set S kept, `M_S[u] = r[u] + sum_S m_k[u]` is the margin of the completion over token `u` (notation of
`_subsets`). Its minimum over `u` decides the argmax; its soft minimum `L_S = -ln sum_u exp(-M_S[u])` is the log-odds.
Every answer is a pair `(low, high)`, `[row, head]` each, over the sets that hold the head: equal where it is exact.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.superposition._subsets import worst_margins

EXACT = 16
"""Up to so many heads every set is tried."""
_CELLS = 1 << 22

Pair = tuple[Float[Tensor, "row head"], Float[Tensor, "row head"]]


def strength(M: Float[Tensor, "*row other"], odds: bool = True) -> Float[Tensor, "*row"]:
    """Log-odds of the completion, or its smallest margin."""
    return -(-M).logsumexp(-1) if odds else M.amin(-1)


def least(m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]) -> Pair:
    """The smallest log-odds over all sets that hold the head.

    Beyond `EXACT` heads: no set is below `-ln sum_u exp(-w[u])` with `w` of `worst_margins`, and the set that attains
    `min_u w[u] = w*` is one of those tried. So `w* - ln(d_vocab - 1) <= low <= high <= w*`.
    """
    if m.shape[1] <= EXACT:
        return (exact := _tried(m, r, True)[..., 0]), exact
    worst = worst_margins(m, r)
    return strength(worst), _at_tokens(m, r, worst, m < 0).amin(-1)


def greatest(m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"], odds: bool = True, rounds: int = 40) -> Pair:
    """The largest log-odds, or smallest margin, over all sets that hold the head.

    Beyond `EXACT` heads: for any weights `p` over tokens, `L_S <= p . M_S - H(p)` and `min_u M_S[u] <= p . M_S`, and the
    right side is largest for the set of all heads with `p . m_k > 0`. Each round takes `p` from a mixture of the sets so
    far (Frank and Wolfe 1956); every such set is a lower bound, every such `p` an upper one.
    """
    if m.shape[1] <= EXACT:
        return (exact := _tried(m, r, odds)[..., 1]), exact
    best = -worst_margins(-m, -r)
    low, high = _at_tokens(m, r, best, m > 0, odds).amax(-1), strength(best, odds)
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

    Margins add and odds multiply: with the heads in two halves, `sum_u exp(-M[u])` of all sets is one product of two
    tables, `[2^(n/2), token]` each. Where exponents could leave float64, tokens are taken one by one.
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
