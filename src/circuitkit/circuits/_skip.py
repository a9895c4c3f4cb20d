"""Skip trigrams of a head: source ... destination -> completion, ranked from the weights."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from circuitkit._blocks import largest_entries, pieces, require_room
from circuitkit._contract import AnyModel, Count, HeadName, Natural, NonNegative, must, public, sizes
from circuitkit._work import progress
from circuitkit.anatomy import Anatomy, anatomy
from circuitkit.circuits._full import full_ov, full_qk


class SkipTrigram(NamedTuple):
    """One triple of token ids: with `source` earlier in the context, `destination` is followed by `completion`.
    **Source**: see `skip_trigrams`.
    """

    source: int
    destination: int
    completion: int
    strength: float
    """What the ranking is by; see `skip_trigrams`."""
    attention: float
    """Expected attention of the destination on one source token among typical others."""
    effect: float
    """What full attention on the source, instead of on typical tokens, adds to the completion's logit."""


def _one_a_token(table: Tensor, model: Any) -> Any:
    d_vocab, _ = sizes(model)
    good = all(size == d_vocab for size in table.shape) and table.min() >= 0 and table.any()
    return bool(good) or f"{d_vocab} tokens on each axis, nothing negative and not all zero: one vocabulary"


_half = "half the context, because the destination is put in the middle of it. Write distance=1 for a source right before it"


@public
@must(_one_a_token, "unigram", "model")
@must(_one_a_token, "likelihood", "model")
@must(_one_a_token, "among", "model")
@must(lambda likelihood: bool(likelihood.max() <= 1) or "probabilities, from 0 to 1")
@must(lambda distance, model: distance <= (most := sizes(model)[1] // 2) or f"0 to {most}, {_half}")
def skip_trigrams(
    model: AnyModel,
    head: HeadName,
    k: Count = 20,
    *,
    unigram: Float[Tensor, " d_vocab"] | None = None,
    likelihood: Float[Tensor, "d_vocab d_vocab"] | None = None,
    among: Bool[Tensor, " d_vocab"] | None = None,
    window: Count = 32,
    distance: Natural | None = None,
    min_together: NonNegative = 0.0,
) -> list[SkipTrigram]:
    r"""The `k` strongest skip trigrams A ... B -> C of a head; each pair (A, C) once, with its best B.

    The weight of a source is (content factor) x (position factor). With $r$ the content factor of A over that of a typical token,
    $E_{A'} \exp s(B, A')$, and $p$ the share of its place, A gets attention $w = r p / (1 + (r - 1) p)$. In a typical token's place
    it changes the logit of C by $w$ times $e = W_{OV}[A, C] - E_{A'} W_{OV}[A', C]$, against the mean over C. The strength is $w
    e$, or with `likelihood` (rows B, columns C: how likely C is anyway) $P(C|B)\, w e$, the gain in probability to first order.

    `unigram`: how typical tokens are distributed (default: uniformly). `among`: tokens allowed in all three roles. $p$ =
    1/`window`, or with `distance`, that many tokens before a B in the middle of the context, as the position terms say.
    `min_together` leaves out pairs (A, B) that would meet less often within `window` by chance in a text with these `unigram`
    counts. **Error**: the ranking is exact for these formulas, a mean-field picture that `corpus_evidence` and the model must
    confirm. Norms and biases are ignored; under rotary positions the source is `distance` back (left out: 0). **Source**: "A
    Mathematical Framework for Transformer Circuits", skip trigrams, there read off by eye.
    """
    value = anatomy(model)
    W_E, d_vocab = value.W_E, value.d_vocab
    allowed = torch.ones(d_vocab, dtype=torch.bool) if among is None else among
    ids = allowed.nonzero().flatten().to(W_E.device)
    counts = (torch.ones(d_vocab) if unigram is None else unigram).to(W_E)
    typical, counts = counts / counts.sum(), counts[ids] * (window / counts.sum()) ** 0.5
    least_met = 0.0 if unigram is None else min_together
    ov = full_ov(value, head)
    left, right = ov.A - typical @ ov.A, ov.B - ov.B.mean(1, keepdim=True)
    left, right = left[ids], right[:, ids]
    attention = (
        odds.masked_fill_(torch.outer(counts[rows], counts) < least_met, -torch.inf) if least_met else odds
        for rows, odds in _attention(value, head, typical, ids, window, distance)
    )
    if likelihood is None:
        weight, b = _best(attention)
        strength, a, c = largest_entries(left * weight[:, None], right, min(k, len(ids) ** 2))
        found = a, b[a], c, strength, weight[a]
    else:
        instead = "Say among which tokens to look: among=unigram > 10"
        require_room("skip_trigrams with likelihood", 3 * len(ids) ** 2, W_E, instead)
        found = _likeliest(likelihood.to(W_E)[ids][:, ids], torch.cat([*attention]).sigmoid(), left, right, k)
    a, b, c, strength, weight = found
    effect = (left[a] * right.T[c]).sum(-1)
    columns = (ids[a], ids[b], ids[c], strength, weight, effect)
    return [SkipTrigram(*row) for row in zip(*(column.tolist() for column in columns), strict=True) if row[3] > 0]


def _best(attention: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Each source's largest attention over all destinations, and where it has it."""
    first, best, place = 0, torch.tensor(-torch.inf), torch.tensor(0)
    for odds in attention:
        most, at = odds.max(0)
        best, place = best.to(most), place.to(at)
        place = torch.where(most > best, at + first, place)
        best, first = torch.maximum(most, best), first + len(odds)
    return best.sigmoid(), place


def _likeliest(chance: Tensor, weight: Tensor, left: Tensor, right: Tensor, k: int) -> tuple[Tensor, ...]:
    """The `k` strongest with P(C|B); a source is searched only where the best B for each could take it among them."""
    most, cap = weight.amax(0), chance.amax(0)
    found = [torch.zeros_like(most.argsort())[:0] for _ in range(3)] + [most[:0], most[:0]]
    for row in most.argsort(descending=True).tolist():
        effect = left[row] @ right
        least = found[3][-1] if len(found[3]) >= k else 0.0
        c = (cap * most[row] * effect > least).nonzero().flatten()
        if len(c):
            best, b = (chance[:, c] * weight[:, row, None]).max(0)
            new = torch.full_like(b, row), b, c, best * effect[c], weight[b, row]
            found = [torch.cat(pair) for pair in zip(found, new, strict=True)]
            kept = found[3].topk(min(k, len(found[3]))).indices
            found = [column[kept] for column in found]
    return tuple(found)


def _attention(
    model: Anatomy, head: "str | int", typical: Tensor, ids: Tensor, window: int, distance: int | None
) -> Iterator[tuple[slice, Float[Tensor, "destination source"]]]:
    """Log-odds of every allowed destination's attention on one allowed source among typical tokens, a block at a time."""
    if any(sub.gate for sub in model.sublayers):
        raise ValueError("skip_trigrams got gated heads; expected heads whose attention is a softmax alone, as its formula says")
    rotary = model[head].turn is not None
    qk = full_qk(model, head, offset=(distance or 0) if rotary else None)
    added, share = None, qk.A.new_tensor(1 / window)
    places = None
    if distance is not None and model.W_pos is not None:
        middle = model.n_ctx // 2
        own, there = full_qk(model, head, query="position"), full_qk(model, head, key="position")
        apart = full_qk(model, head, query="position", key="position")
        added, keys = own.A[middle] @ own.B, slice(middle + 1)
        places = lambda rows: there.A[rows] @ there.B[:, keys] + apart.A[middle] @ apart.B[:, keys]  # noqa: E731
    for rows in progress(pieces(len(ids), -(-len(qk.A) // 4)), "destinations"):
        content = qk.A[ids[rows]] @ qk.B
        content = content if added is None else content + added
        if places is not None:
            share = places(ids[rows]).softmax(-1)[:, -1 - (distance or 0), None]
        odds = content.clone() if len(ids) == content.shape[1] else content[:, ids]
        top = content.add_(typical.log()).amax(-1, keepdim=True)  # logsumexp in place: each copy of a block takes as long as a step of it
        yield rows, odds.sub_(content.sub_(top).exp_().sum(-1, keepdim=True).log_().add_(top).sub_(share.logit()))
