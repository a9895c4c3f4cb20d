"""Skip trigrams of a head, source ... destination -> completion: ranked from the weights, looked for in text, and their bugs."""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._blocks import largest_entries, pieces, require_room
from circuitkit._contract import (
    AnyModel,
    Count,
    HeadName,
    Natural,
    NonNegative,
    Triples,
    ids,
    must,
    public,
    sizes,
)
from circuitkit._work import progress
from circuitkit.anatomy import Anatomy, anatomy
from circuitkit.circuits._full import full_ov, full_qk
from circuitkit.circuits._paths import BIAS, DIRECT, path_logits
from circuitkit.models import stored_file


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
    return (
        bool(good)
        or f"{d_vocab} tokens on each axis, nothing negative and not all zero: one vocabulary"
    )


_half = "half the context, because the destination is put in the middle of it. Write distance=1 for a source right before it"


@public
@must(_one_a_token, "unigram", "model")
@must(_one_a_token, "likelihood", "model")
@must(_one_a_token, "among", "model")
@must(
    lambda min_together, unigram: (
        not min_together
        or unigram is not None
        or "unigram= beside it, because it is a sum over that many tokens of text"
    )
)
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
        odds.masked_fill_(torch.outer(counts[rows], counts) < least_met, -torch.inf)
        if least_met
        else odds
        for rows, odds in _attention(value, head, typical, ids, window, distance)
    )
    if likelihood is None:
        weight, b = _best(attention)
        strength, a, c = largest_entries(left * weight[:, None], right, min(k, len(ids) ** 2))
        found = a, b[a], c, strength, weight[a]
    else:
        instead = "Say among which tokens to look: among=unigram > 10"
        require_room("skip_trigrams with likelihood", 3 * len(ids) ** 2, W_E, instead)
        found = _likeliest(
            likelihood.to(W_E)[ids][:, ids], torch.cat([*attention]).sigmoid(), left, right, k
        )
    a, b, c, strength, weight = found
    effect = (left[a] * right.T[c]).sum(-1)
    columns = (ids[a], ids[b], ids[c], strength, weight, effect)
    return [
        SkipTrigram(*row)
        for row in zip(*(column.tolist() for column in columns), strict=True)
        if row[3] > 0
    ]


def _best(attention: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Each source's largest attention over all destinations, and where it has it."""
    first, best, place = 0, torch.tensor(-torch.inf), torch.tensor(0)
    for odds in attention:
        most, at = odds.max(0)
        best, place = best.to(most), place.to(at)
        place = torch.where(most > best, at + first, place)
        best, first = torch.maximum(most, best), first + len(odds)
    return best.sigmoid(), place


def _likeliest(
    chance: Tensor, weight: Tensor, left: Tensor, right: Tensor, k: int
) -> tuple[Tensor, ...]:
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
    model: Anatomy,
    head: "str | int",
    typical: Tensor,
    ids: Tensor,
    window: int,
    distance: int | None,
) -> Iterator[tuple[slice, Float[Tensor, "destination source"]]]:
    """Log-odds of every allowed destination's attention on one allowed source among typical tokens, a block at a time."""
    if any(sub.gate for sub in model.sublayers):
        raise ValueError(
            "skip_trigrams got gated heads; expected heads whose attention is a softmax alone, as its formula says"
        )
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
        top = content.add_(typical.log()).amax(
            -1, keepdim=True
        )  # logsumexp in place: each copy of a block takes as long as a step of it
        yield (
            rows,
            odds.sub_(
                content.sub_(top).exp_().sum(-1, keepdim=True).log_().add_(top).sub_(share.logit())
            ),
        )


class Evidence(NamedTuple):
    """Counts for one triple over a text: shares `hits_with / n_with` and `hits_without / n_without`. **Source**: see
    `corpus_evidence`.
    """

    n_with: int
    """Places with the destination where the source occurs within the window before."""
    hits_with: int
    """Those of them that the completion follows."""
    n_without: int
    """Places with the destination where the source does not occur within the window."""
    hits_without: int

    @property
    def share_with(self) -> float:
        """How often the completion follows when the source came before; NaN without a case."""
        return self.hits_with / self.n_with if self.n_with else float("nan")

    @property
    def share_without(self) -> float:
        """How often it follows otherwise."""
        return self.hits_without / self.n_without if self.n_without else float("nan")

    @property
    def z(self) -> float:
        """Difference of the two shares in standard errors (pooled); 0 where it cannot be told."""
        n, hits = self.n_with + self.n_without, self.hits_with + self.hits_without
        if not self.n_with or not self.n_without or hits in (0, n):
            return 0.0
        variance = hits / n * (1 - hits / n) * (1 / self.n_with + 1 / self.n_without)
        return (self.share_with - self.share_without) / variance**0.5


@public
@must(
    lambda tokens: (
        tokens.ndim < 3
        and tokens.numel()
        and tokens.min() >= 0
        or "ids, 0 or more, [pos] or [row, pos]"
    )
)
@must(
    lambda window: (
        window[0] <= window[1]
        or "(nearest, farthest) with 1 <= nearest <= farthest. Write window=(1, 32)"
    )
)
def corpus_evidence(
    triples: Triples, tokens: Int[Tensor, "*row pos"], *, window: tuple[Count, Count] = (1, 32)
) -> list[Evidence]:
    """Counts for triples (source, destination, completion, ...) in a text: one `Evidence` each, in order.

    The source lies `window[0]` to `window[1]` tokens before the destination (1 = right before it); the completion is the very
    next token. Rows are separate texts; one long row is read through document borders. **Error**: exact counts, and no proof:
    a source can stand for its topic. **Source**: this book.

    >>> text = torch.tensor([7, 1, 5, 2, 9, 5, 3])
    >>> corpus_evidence([(7, 5, 2)], text, window=(1, 3))
    [Evidence(n_with=1, hits_with=1, n_without=1, hits_without=0)]
    """
    nearest, farthest = window
    rows = tokens[None] if tokens.ndim == 1 else tokens
    wanted = [tuple(int(part) for part in tuple(triple)[:3]) for triple in triples]
    follows = rows[:, 1:]
    places = {b: (rows[:, :-1] == b).nonzero(as_tuple=True) for b in {b for _, b, _ in wanted}}
    out: dict[tuple, Evidence] = {}
    for source in dict.fromkeys(a for a, _, _ in wanted):
        before = torch.nn.functional.pad((rows == source).cumsum(1, dtype=torch.int32), (1, 0))
        for triple in {t for t in wanted if t[0] == source}:
            row, place = places[triple[1]]
            upto = before[row, (place - nearest + 1).clamp_min(0)]
            seen = upto > before[row, (place - farthest).clamp_min(0)]
            hit = follows[row, place] == triple[2]
            with_source, hits = int(seen.sum()), int((seen & hit).sum())
            out[triple] = Evidence(
                with_source, hits, len(place) - with_source, int(hit.sum()) - hits
            )
    return [out[triple] for triple in wanted]


class SkipTrigramStatistics(NamedTuple):
    """What `skip_trigram_statistics` returns. **Source**: counted by `studies/edition-2/train/skip_trigram_statistics.py`."""

    evidence: dict[tuple[int, int, int], Evidence]
    """For the strongest skip trigrams of the one-layer model's heads: counts over the training text."""
    words: Int[Tensor, "triple 5"]
    """Frequent pieces of a word in a row: (source, destination, completion, n, hits), `hits` of the pair's `n` places."""
    occurring: Int[Tensor, "triple 4"]
    """Crossings of `words` that do occur in the text, (source, destination, completion, hits); no other one does."""
    provenance: dict[str, Any]
    """Window, thresholds, number of tokens, and the hashes of the tokens and of the model's weights."""


@cache
def skip_trigram_statistics() -> SkipTrigramStatistics:
    """The shipped counts. They were made on text the models learned from: evidence of what there was to learn.

    **Source**: counted over the training text by `studies/edition-2/train/skip_trigram_statistics.py`.
    """
    from safetensors import safe_open

    with safe_open(stored_file("circuits", "skip_trigrams.safetensors"), framework="pt") as table:
        rows = table.get_tensor("evidence").tolist()
        words, occurring = table.get_tensor("words").long(), table.get_tensor("occurring").long()
        provenance = json.loads(table.metadata()["provenance"])
    return SkipTrigramStatistics(
        {tuple(row[:3]): Evidence(*row[3:]) for row in rows}, words, occurring, provenance
    )


class SkipTrigramBug(NamedTuple):
    """After `source` ... `destination` the model expects `wrong`, which belongs after `source` ... `licensed_by`.
    **Source**: `skip_trigram_bugs`.
    """

    source: int
    destination: int
    wrong: int
    """The completion that is forced: right after `licensed_by`, wrong here."""
    right: int
    """The completion that belongs here."""
    licensed_by: int
    """The other destination, after which `wrong` is right."""
    p_wrong: float
    """The model's probability of `wrong` here, mean over the contexts."""
    p_right: float
    p_wrong_direct: float
    """The probability of `wrong` if only the direct path (and the biases) spoke."""


class BugSearch(NamedTuple):
    """What `skip_trigram_bugs` returns. **Source**: see `skip_trigram_bugs`."""

    bugs: list[SkipTrigramBug]
    """Largest `p_wrong` first; of several licences for one wrong triple, the first."""
    crossings: Int[Tensor, "crossing 5"]
    """Every crossing tried: (source, destination, wrong, right, licensed_by)."""
    p_wrong: Float[Tensor, " crossing"]
    """The model's probability of the wrong completion, mean over the contexts of the first pass."""
    p_wrong_direct: Float[Tensor, " crossing"]
    """The same from the direct path alone."""


def _in_vocabulary(triples: Any, model: Any) -> Any:
    d_vocab, _ = sizes(model)
    known = all(0 <= int(part) < d_vocab for triple in triples for part in tuple(triple)[:3])
    return known or f"ids in 0..{d_vocab - 1}, the model's vocabulary. Use its own tokenizer"


@public
@ids("contexts")
@must(_in_vocabulary, "triples", "model")
@must(
    lambda contexts, model: (
        contexts.shape[1] <= (most := sizes(model)[1] - 2)
        or f"at most {most} tokens, because two more are appended. Write contexts[:, :{most}]"
    )
)
def skip_trigram_bugs(
    model: AnyModel,
    triples: Triples,
    contexts: Int[Tensor, "context pos"],
    k: Count = 10,
    *,
    occurring: Triples = (),
    first_pass: Count = 2,
    batch: Count = 512,
) -> BugSearch:
    r"""Cross all triples that share a source, and ask the model which crossings it falls for.

    A head adds $w(B, A)\, W_{OV}[A, C]$ to the logit of C: what is raised depends on the source A alone. So A B -> C and A B'
    -> C' through one head also raise C after A B', unless other paths vote it down. `triples`: rows (source, destination,
    completion, ...), of `skip_trigrams` or counted. `contexts`: real text that source and destination are put after, each row
    opened as the model expects; the first `first_pass` rank all crossings, all judge the best `4 * k`. `occurring`: triples
    that a text holds after all, which are then no bugs. **Error**: exact model probabilities for these contexts; that a
    crossing does not occur must be counted (`corpus_evidence`). **Source**: "A Mathematical Framework for Transformer
    Circuits", skip-trigram bugs; the search is ours.
    """
    crossings = _crossings(triples, occurring)
    if not len(crossings):
        raise ValueError(
            f"skip_trigram_bugs got {len(triples)} triples without a crossing; expected two with one source, different "
            "destinations and different completions, because that is what a bug is made of. Give more triples."
        )
    full, direct = _probabilities(model, crossings, contexts[:first_pass], batch)
    order = full[:, 0].argsort(descending=True, stable=True).tolist()
    kept = list({tuple(crossings[i, :3].tolist()): i for i in reversed(order)}.values())[::-1][
        : 4 * k
    ]
    chosen = crossings[kept]
    judged, judged_direct = _probabilities(model, chosen, contexts, batch)
    best = judged[:, 0].argsort(descending=True, stable=True)[:k].tolist()
    bugs = [
        SkipTrigramBug._make([*chosen[i].tolist(), *judged[i].tolist(), judged_direct[i].item()])
        for i in best
    ]
    return BugSearch(bugs, crossings, full[:, 0], direct)


def _crossings(triples: Any, occurring: Any) -> Int[Tensor, "crossing 5"]:
    """(A, B', C, C', B) for every two triples (A, B, C) and (A, B', C') such that (A, B', C) is not known.

    Two triples that share the destination or the completion never cross: the crossing is one of them, and known.
    """
    by_source: dict[int, list[tuple[int, int]]] = {}
    for triple in triples:
        a, b, c = (int(part) for part in tuple(triple)[:3])
        by_source.setdefault(a, []).append((b, c))
    known = {(a, b, c) for a, pairs in by_source.items() for b, c in pairs}
    known |= {tuple(int(part) for part in tuple(triple)[:3]) for triple in occurring}
    rows = [
        (a, b2, c1, c2, b1)
        for a, pairs in by_source.items()
        for b1, c1 in pairs
        for b2, c2 in pairs
        if (a, b2, c1) not in known
    ]
    return torch.tensor(rows, dtype=torch.long).reshape(-1, 5)


def _probabilities(
    model: Any,
    crossings: Int[Tensor, "crossing 5"],
    contexts: Int[Tensor, "context pos"],
    batch: int,
) -> tuple[Float[Tensor, "crossing 2"], Float[Tensor, " crossing"]]:
    """Mean probability of (wrong, right), and of wrong from the direct path, after each context + source + destination."""
    contexts, crossings = (rows.to(anatomy(model).W_U.device) for rows in (contexts, crossings))
    pairs, which = torch.unique(crossings[:, :2], dim=0, return_inverse=True)
    full = anatomy(model).W_U.new_zeros(len(crossings), 2)
    direct = full.new_zeros(len(crossings))
    for context in contexts:
        for first in range(0, len(pairs), batch):
            some = pairs[first : first + batch]
            tokens = torch.cat([context.expand(len(some), -1), some], dim=1)
            paths = path_logits(model, tokens, max_order=0)
            here = ((which >= first) & (which < first + batch)).nonzero().flatten()
            rows = which[here] - first
            chance = paths.sum(at=-1).softmax(-1)[rows]
            full[here] += chance.gather(1, crossings[here, 2:4]) / len(contexts)
            alone = paths.sum([name for name in paths if name in (DIRECT, BIAS)], at=-1).softmax(
                -1
            )[rows]
            direct[here] += alone.gather(1, crossings[here, 2:3])[:, 0] / len(contexts)
    return full, direct
