"""Skip trigrams of a head: source ... destination -> completion, ranked from the weights."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from circuitkit._contract import AnyModel, Count, HeadName, Natural, NonNegative, must, public, sizes
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

    Scores add up, so the weight of a source is (content factor) x (position factor). With $r$ the content factor of A
    over that of a typical token, $E_{A'} \exp s(B, A')$, and $p$ the share of its place, one A gets attention
    $w = r p / (1 + (r - 1) p)$. Replacing a typical token by A then changes the logit of C by $w$ times
    $e = W_{OV}[A, C] - E_{A'} W_{OV}[A', C]$, measured against the mean over C. The strength is $w e$, or with
    `likelihood` (rows B, columns C: how likely C is anyway) $P(C|B)\, w e$, the first-order gain in probability.

    `unigram`: how typical tokens are distributed (default: uniformly). `among`: tokens allowed in all three roles.
    Positions are left out and $p$ = 1/`window`, unless `distance` is given: then A stands that many tokens before B,
    in the middle of the context, and the head's position terms decide $p$. `min_together` leaves out pairs (A, B) that
    would meet less often within `window` by chance in a text with these `unigram` counts: too rare to find evidence.

    **Error**: the ranking is exact for these formulas; they are a mean-field picture of attention, which
    `corpus_evidence` and the model itself must confirm. Norms are ignored, biases too; under rotary positions the content
    factor is that of a source `distance` back (left out: 0).
    **Source**: "A Mathematical Framework for Transformer Circuits", skip trigrams, where triples were read off by eye.
    """
    value = anatomy(model)
    W_E, d_vocab = value.W_E, value.d_vocab
    allowed = torch.ones(d_vocab, dtype=torch.bool) if among is None else among
    ids = allowed.nonzero().flatten()
    typical = (torch.ones(d_vocab) if unigram is None else unigram).to(W_E)
    typical = typical / typical.sum()
    ov = full_ov(value, head)
    left, right = ov.A - typical @ ov.A, ov.B - ov.B.mean(1, keepdim=True)
    attention = _attention(value, head, typical, ids, window, distance)
    if unigram is not None and min_together > 0:
        counts = unigram.to(W_E)[ids]
        attention = attention * (counts[:, None] * counts * window / unigram.sum() >= min_together)
    chance = None if likelihood is None else likelihood.to(W_E)[ids][:, ids]
    found: list[Tensor] = []
    for row, source in enumerate(ids.tolist()):
        effect = left[source] @ right[:, ids]
        weight = attention[:, row]
        if chance is None:
            place = weight.argmax().expand(len(ids))
            strength = weight.max() * effect
        else:
            best, place = (chance * weight[:, None]).max(0)
            strength = best * effect
        top = strength.topk(min(k, len(ids)))
        found.append(
            torch.stack(
                [torch.full_like(top.values, row), place[top.indices], top.indices, top.values, effect[top.indices]]
            )
        )
    every = torch.cat(found, dim=1)
    best = every[:, every[3].topk(min(k, every.shape[1])).indices]
    return [
        SkipTrigram(int(ids[int(a)]), int(ids[int(b)]), int(ids[int(c)]), s, float(attention[int(b), int(a)]), e)
        for a, b, c, s, e in best.T.tolist()
        if s > 0
    ]


def _attention(
    model: Anatomy, head: "str | int", typical: Tensor, ids: Tensor, window: int, distance: int | None
) -> Float[Tensor, "destination source"]:
    """Expected attention of every allowed destination on one allowed source among typical tokens."""
    if any(sub.gate for sub in model.sublayers):
        raise ValueError("skip_trigrams got gated heads; expected heads whose attention is a softmax alone, as its formula says")
    rotary = model[head].turn is not None
    qk = full_qk(model, head, offset=(distance or 0) if rotary else None)
    content, share = qk.A[ids] @ qk.B, 1 / window
    if distance is not None and model.W_pos is not None:
        middle = model.n_ctx // 2
        own = full_qk(model, head, query="position")
        there = full_qk(model, head, key="position")
        places = there.A[ids] @ there.B[:, : middle + 1]
        apart = full_qk(model, head, query="position", key="position")
        places = places + apart.A[middle] @ apart.B[:, : middle + 1]
        content, share = content + own.A[middle] @ own.B, places.softmax(-1)[:, middle - distance, None]
    ratio = (content[:, ids] - (content + typical.log()).logsumexp(-1, keepdim=True)).exp()
    return ratio * share / (1 + (ratio - 1) * share)

