"""Skip trigrams `source ... destination -> completion` of a head, their evidence in text, and bugs.

A head that attends from the destination to an earlier source adds the source's row of the OV table
to the logits. Which source it attends to, the QK table decides.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit.checks import checked, require_at_least, require_bridge, to_tokens
from circuitkit.circuits import full_ov, full_qk
from circuitkit.heads import heads_of, require_attention_head
from circuitkit.models import stored_file
from circuitkit.paths import BIAS, DIRECT, path_logits

__all__ = [
    "BugSearch",
    "Evidence",
    "SkipTrigram",
    "SkipTrigramBug",
    "Statistics",
    "count_evidence",
    "find_bugs",
    "shipped_statistics",
    "strongest",
]

Triples = Sequence[Sequence] | Int[Tensor, "_row _column"]
BLOCK = 2**22
"""Numbers in a block of a large table: larger blocks are no faster, because they leave the cache."""
ROWS = 512
"""Rows of tokens that are run together."""


class SkipTrigram(NamedTuple):
    """With the token `source` earlier in the text, `destination` is followed by `completion`.

    Notes
    -----
    Source: see `strongest`.
    """

    source: int
    destination: int
    completion: int
    strength: float
    """What the ranking is by; see `strongest`."""
    attention: float
    """Expected attention of the destination to one source token among typical others."""
    effect: float
    """What full attention to the source adds to the logit of the completion."""
    text: str
    """The three tokens as text."""


@checked
def strongest(
    model: Any,
    head: str,
    k: int = 20,
    *,
    unigram: Float[Tensor, " d_vocab"] | None = None,
    likelihood: Float[Tensor, "d_vocab d_vocab"] | None = None,
    among: Bool[Tensor, " d_vocab"] | None = None,
    window: int = 32,
    min_together: float = 0.0,
) -> list[SkipTrigram]:
    r"""Rank the skip trigrams A ... B -> C of a head by its weights.

    Parameters
    ----------
    model : a `TransformerBridge`
    head : the name of an attention head, such as `"L0H1"`
    k : how many; each pair (A, C) is listed once, with its best B
    unigram : how often each token occurs in text; by default all equally often
    likelihood : how likely each token (column) follows each other one (row) without the head
    among : the tokens that are allowed in all three places; by default all of them
    window : the source competes with `window - 1` typical tokens for the attention
    min_together : leave out pairs (A, B) that meet less often than this by chance, within `window`
        tokens of a text with the counts `unigram`

    Returns
    -------
    `SkipTrigram` rows, the strongest first; fewer than `k` if no others raise a completion.

    Raises
    ------
    ValueError : for tables that do not belong to the vocabulary, gated heads, and a name that is no
        attention head

    Notes
    -----
    With $r$ the content factor of A over that of a typical token, $E_{A'} \exp s(B, A')$, and $p$
    = 1/`window`, A gets attention $w = r p / (1 + (r - 1) p)$. In the place of a typical token, it
    changes the logit of C by $w$ times $e = W_{OV}[A, C] - E_{A'} W_{OV}[A', C]$, minus the mean
    over C. The strength is $w e$, or with `likelihood` $P(C|B)\, w e$, the gain in probability to
    first order. Norms, biases and positions are ignored (under rotary positions, the distance is
    0). Error: the ranking is exact for these formulas; they are an approximation that
    `count_evidence` and the model must confirm. Source: "A Mathematical Framework for Transformer
    Circuits", skip trigrams, which are read off by eye there.

    Examples
    --------
    >>> import circuitkit as ck
    >>> strongest(ck.load_model("one-layer"), "L0H0", 1)[0].text
    "' gu' ... ' cur' -> ' morning'"
    """
    require_bridge(model)
    require_attention_head(model, head)
    d_vocab = model.cfg.d_vocab
    require_tables(d_vocab, unigram=unigram, likelihood=likelihood, among=among)
    require_at_least(1, window=window, k=k)
    tables = HeadTables.of(model, head, unigram, window)
    ids = torch.arange(d_vocab) if among is None else among.nonzero().flatten()
    ids = ids.to(model.W_E.device)
    counts = torch.ones(d_vocab) if unigram is None else unigram
    # how often two tokens meet by chance within the window is the product of these numbers
    meetings = (counts * (window / counts.sum()) ** 0.5).to(model.W_E)[ids]
    chance = None if likelihood is None else likelihood.to(model.W_E)[ids][:, ids]
    best, destination = best_destinations(tables, ids, chance, meetings, min_together)
    strength, source, completion = largest_products(tables, ids, best, k)
    destination = destination.expand(-1, len(ids))[source, completion]

    triples = torch.stack([ids[source], ids[destination], ids[completion]], dim=1)
    ranked = []
    for row, value in zip(triples, strength.tolist(), strict=True):
        if value > 0:
            a, b, c = row[:, None]
            attention, effect = tables.attention(b, a).item(), tables.effect(a, c).item()
            text = trigram_text(model, row.tolist())
            ranked.append(SkipTrigram(int(a), int(b), int(c), value, attention, effect, text))
    return ranked


def require_tables(d_vocab: int, **tables: Tensor | None) -> None:
    """Raise a `ValueError` for a table that does not have one entry of at least 0 for each token."""
    for name, table in tables.items():
        if table is None:
            continue
        if set(table.shape) != {d_vocab} or not bool(table.any()) or bool((table < 0).any()):
            raise ValueError(
                f"{name} has the shape {tuple(table.shape)}. It needs an entry of at least 0 for "
                f"each of the {d_vocab} tokens of this model, and not all of them 0."
            )


def trigram_text(model: Any, ids: Sequence[int]) -> str:
    """Three tokens in words, or as ids if the model has no tokenizer."""
    words = [str(i) if model.tokenizer is None else repr(model.tokenizer.decode([i])) for i in ids]
    return "{} ... {} -> {}".format(*words)


# The approximation behind the ranking: one source among typical tokens


@dataclass(frozen=True)
class HeadTables:
    """The QK and OV tables of one head, and how often typical tokens occur.

    Parameters
    ----------
    queries, keys : `[d_vocab, d_head]` and `[d_head, d_vocab]`; their product is the score
    values, logits : `[d_vocab, d_head]` and `[d_head, d_vocab]`; their product is the OV table,
        minus its mean over typical sources and over completions
    typical : `[d_vocab]`, sums to 1
    window : the source competes with `window - 1` typical tokens
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    logits: Tensor
    typical: Tensor
    window: int

    @classmethod
    def of(cls, model: Any, head: str, unigram: Tensor | None, window: int) -> "HeadTables":
        """Read the tables of a head."""
        is_rotary = heads_of(model, head).turn is not None
        qk = full_qk(model, head, offset=0 if is_rotary else None)
        ov = full_ov(model, head)
        counts = torch.ones_like(qk.A[:, 0]) if unigram is None else unigram.to(qk.A)
        typical = counts / counts.sum()
        values = ov.A - typical @ ov.A
        return cls(qk.A, qk.B, values, ov.B - ov.B.mean(1, keepdim=True), typical, window)

    def attention(
        self, destinations: Int[Tensor, " dst"], sources: Int[Tensor, " src"]
    ) -> Float[Tensor, "dst src"]:
        """Expected attention of each destination to one source among typical tokens."""
        scores = self.queries[destinations] @ self.keys  # [dst, d_vocab]
        of_typical = (scores + self.typical.log()).logsumexp(-1, keepdim=True)
        content = scores[:, sources] - of_typical  # log r
        share = scores.new_tensor(1 / self.window)
        # w = r p / (1 + (r - 1) p) has the log-odds log r + logit(p)
        return torch.sigmoid(content + share.logit())

    def effect(
        self, sources: Int[Tensor, " src"], completions: Int[Tensor, " completion"]
    ) -> Float[Tensor, "src completion"]:
        """What full attention to each source adds to each logit."""
        return self.values[sources] @ self.logits[:, completions]


def blocks_of(n: int, width: int) -> list[slice]:
    """The rows 0 to `n - 1` of a table with rows of this width, in blocks that fit the cache."""
    step = max(1, BLOCK // width)
    return [slice(first, first + step) for first in range(0, n, step)]


def best_destinations(
    tables: HeadTables,
    ids: Int[Tensor, " token"],
    likelihood: Float[Tensor, "token token"] | None,
    meetings: Float[Tensor, " token"],
    min_together: float,
) -> tuple[Tensor, Tensor]:
    """For each source A and completion C, the largest `P(C|B) w(B, A)`, and the B that has it.

    Without `likelihood`, the best B is the same for every C, so both results are `[source, 1]`.
    """
    n_tokens = len(ids)
    best = torch.zeros(n_tokens, 1 if likelihood is None else n_tokens).to(tables.typical)
    destination = torch.zeros_like(best, dtype=torch.long)
    # a block of destinations at a time: the whole table is [50,000, 50,000] for a GPT-2
    for rows in blocks_of(n_tokens, len(tables.typical)):
        attention = tables.attention(ids[rows], ids)  # [destination, source]
        attention[meetings[rows, None] * meetings < min_together] = 0
        for number, weights in enumerate(attention, rows.start):
            gains = weights[:, None]  # [source, 1]
            if likelihood is not None:
                gains = gains * likelihood[number]  # [source, completion]
            is_better = gains > best
            best = torch.where(is_better, gains, best)
            destination[is_better] = number
    return best, destination


def largest_products(
    tables: HeadTables, ids: Int[Tensor, " token"], best: Tensor, k: int
) -> tuple[Float[Tensor, " k"], Int[Tensor, " k"], Int[Tensor, " k"]]:
    """The largest strengths, with the places of their sources and completions in `ids`."""
    strengths, places = [], []
    for rows in blocks_of(len(ids), len(ids)):
        strength = best[rows] * tables.effect(ids[rows], ids)  # [source, completion]
        # the k largest stand in the k rows with the largest maxima, so only these are searched
        top_rows = strength.amax(1).topk(min(k, len(strength))).indices
        values, flat = strength[top_rows].flatten().topk(min(k, len(top_rows) * len(ids)))
        source = rows.start + top_rows[flat // len(ids)]
        strengths.append(values)
        places.append(torch.stack([source, flat % len(ids)]))
    values, order = torch.cat(strengths).topk(min(k, len(ids) ** 2))
    source, completion = torch.cat(places, dim=1)[:, order]
    return values, source, completion


# Evidence in a text


class Evidence(NamedTuple):
    """How often a completion follows a destination, with and without the source before it.

    Notes
    -----
    Source: see `count_evidence`.
    """

    n_with: int
    """Places with the destination where the source occurs within the window before it."""
    hits_with: int
    """How many of them the completion follows."""
    n_without: int
    """Places with the destination where the source does not occur within the window."""
    hits_without: int
    """How many of them the completion follows."""

    @property
    def share_with(self) -> float:
        """How often the completion follows if the source came before; NaN without a case."""
        return self.hits_with / self.n_with if self.n_with else float("nan")

    @property
    def share_without(self) -> float:
        """How often it follows otherwise; NaN without a case."""
        return self.hits_without / self.n_without if self.n_without else float("nan")

    @property
    def z(self) -> float:
        """Difference of the two shares in (pooled) standard errors; 0 where it is undefined."""
        n, hits = self.n_with + self.n_without, self.hits_with + self.hits_without
        if not self.n_with or not self.n_without or hits in (0, n):
            return 0.0
        variance = hits / n * (1 - hits / n) * (1 / self.n_with + 1 / self.n_without)
        return (self.share_with - self.share_without) / variance**0.5


@checked
def count_evidence(
    triples: Triples,
    tokens: Int[Tensor, "*row pos"],
    *,
    window: tuple[int, int] = (1, 32),
) -> list[Evidence]:
    """Count in a text how often completions follow with and without their source.

    Parameters
    ----------
    triples : rows `(source, destination, completion, ...)`, such as those of `strongest`
    tokens : token ids `[pos]` or `[row, pos]`; rows are separate texts
    window : the source lies this many tokens before the destination, (nearest, farthest);
        1 is right before it

    Returns
    -------
    One `Evidence` for each triple, in order. The completion is the very next token.

    Raises
    ------
    ValueError : for a window that is empty, and for a triple with fewer than three tokens

    Notes
    -----
    Error: the counts are exact, and they prove nothing: a source can stand for the topic of a text.
    Source: this book.

    Examples
    --------
    >>> text = torch.tensor([7, 1, 5, 2, 9, 5, 3])
    >>> count_evidence([(7, 5, 2)], text, window=(1, 3))
    [Evidence(n_with=1, hits_with=1, n_without=1, hits_without=0)]
    """
    nearest, farthest = window
    if not 1 <= nearest <= farthest:
        raise ValueError(
            f"window={window} holds no token. Write (nearest, farthest) with "
            "1 <= nearest <= farthest, such as (1, 32)."
        )
    rows = tokens.reshape(-1, tokens.shape[-1])
    counts_before: dict[int, Tensor] = {}
    evidence = []
    for triple in triples:
        source, destination, completion = three_tokens(triple)
        if source not in counts_before:
            seen = (rows == source).cumsum(1, dtype=torch.int32)
            counts_before[source] = F.pad(seen, (1, 0))  # [row, pos + 1], sources before each place
        row, place = (rows[:, :-1] == destination).nonzero(as_tuple=True)
        last = counts_before[source][row, (place - nearest + 1).clamp_min(0)]
        first = counts_before[source][row, (place - farthest).clamp_min(0)]
        follows_source = last > first
        is_hit = rows[row, place + 1] == completion
        n_with = int(follows_source.sum())
        hits_with = int((follows_source & is_hit).sum())
        hits_without = int(is_hit.sum()) - hits_with
        evidence.append(Evidence(n_with, hits_with, len(place) - n_with, hits_without))
    return evidence


def three_tokens(triple: Sequence | Tensor) -> tuple[int, int, int]:
    """Source, destination and completion, which may be followed by other entries."""
    if len(triple) < 3:
        raise ValueError(
            f"The triple {tuple(int(token) for token in triple)} has {len(triple)} entries. Write "
            "three token ids: (source, destination, completion)."
        )
    source, destination, completion = (int(token) for token in triple[:3])
    return source, destination, completion


class Statistics(NamedTuple):
    """What `shipped_statistics` returns.

    Notes
    -----
    Source: counted by `studies/edition-2/train/skip_trigram_statistics.py`.
    """

    evidence: dict[tuple[int, int, int], Evidence]
    """Counts for the strongest skip trigrams of the one-layer model's heads."""
    words: Int[Tensor, "triple 5"]
    """Frequent pieces of a word in a row: (source, destination, completion, n, hits), `hits` of the
    pair's `n` places."""
    occurring: Int[Tensor, "triple 4"]
    """Crossings of `words` that do occur in the text: (source, destination, completion, hits)."""
    provenance: dict[str, Any]
    """Window, thresholds, number of tokens, and hashes of the tokens and of the model's weights."""


def shipped_statistics() -> Statistics:
    """Read the shipped counts over the text that the models of this book learned from.

    Notes
    -----
    Source: counted by `studies/edition-2/train/skip_trigram_statistics.py`.
    """
    from safetensors import safe_open

    with safe_open(stored_file("circuits", "skip_trigrams.safetensors"), framework="pt") as table:
        rows = table.get_tensor("evidence").tolist()
        words = table.get_tensor("words").long()
        occurring = table.get_tensor("occurring").long()
        provenance = json.loads(table.metadata()["provenance"])
    evidence = {tuple(row[:3]): Evidence(*row[3:]) for row in rows}
    return Statistics(evidence, words, occurring, provenance)


# Bugs: two skip trigrams with one source


class SkipTrigramBug(NamedTuple):
    """After `source` ... `destination`, the model predicts a completion of another destination.

    Notes
    -----
    Source: see `find_bugs`.
    """

    source: int
    destination: int
    wrong: int
    """The completion that is right after `licensed_by` and wrong here."""
    right: int
    """The completion that is right here."""
    licensed_by: int
    """The other destination."""
    p_wrong: float
    """The model's probability of `wrong`, mean over the contexts."""
    p_right: float
    """The model's probability of `right`, mean over the contexts."""
    p_wrong_direct: float
    """The probability of `wrong` from the direct path and the biases alone."""


class BugSearch(NamedTuple):
    """What `find_bugs` returns.

    Notes
    -----
    Source: see `find_bugs`.
    """

    bugs: list[SkipTrigramBug]
    """The largest `p_wrong` first; a wrong triple that several others license is listed once."""
    crossings: Int[Tensor, "crossing 5"]
    """All that were tried: (source, destination, wrong, right, licensed_by)."""
    p_wrong: Float[Tensor, " crossing"]
    """The model's probability of each wrong completion, mean over the first two contexts."""


@checked
def find_bugs(
    model: Any,
    triples: Triples,
    contexts: Int[Tensor, "context pos"],
    k: int = 10,
    *,
    occurring: Triples = (),
) -> BugSearch:
    r"""Cross all triples that share a source, and measure which crossings the model predicts.

    A head adds $w(B, A)\, W_{OV}[A, C]$ to the logit of C, so which logits it raises depends on the
    source A alone. If one head makes A B -> C and A B' -> C', it also raises C after A B', unless
    other paths lower it.

    Parameters
    ----------
    model : a `TransformerBridge`
    triples : rows `(source, destination, completion, ...)`
    contexts : real text `[context, pos]`, after which source and destination are put
    k : how many bugs are returned
    occurring : crossings that a text holds after all, and that are therefore no bugs

    Raises
    ------
    ValueError : if no two triples cross, for contexts that leave no room for two tokens, and for
        token ids outside the vocabulary

    Notes
    -----
    The first two contexts rank all crossings, and all contexts judge the best `4 * k`. Error: the
    probabilities are exact for these contexts; that a crossing does not occur must be counted
    (`count_evidence`). Source: "A Mathematical Framework for Transformer Circuits", skip-trigram
    bugs; the search is this book's.
    """
    require_at_least(1, k=k)
    contexts = to_tokens(model, contexts)
    if contexts.shape[1] > model.cfg.n_ctx - 2:
        raise ValueError(
            f"The contexts have {contexts.shape[1]} tokens. At most {model.cfg.n_ctx - 2} fit, "
            f"because two are added. Write contexts[:, :{model.cfg.n_ctx - 2}]."
        )
    crossings = crossings_of(triples, occurring).to(contexts.device)
    if not len(crossings):
        raise ValueError(
            "No two triples cross. A bug needs two triples with one source, different "
            "destinations and different completions."
        )
    to_tokens(model, crossings[:, :3].reshape(-1, 1))  # an error for ids outside the vocabulary
    ranking = mean_probabilities(model, crossings, contexts[:2])[:, 0]
    first_of_triple: dict[tuple[int, ...], int] = {}
    for number in ranking.argsort(descending=True, stable=True).tolist():
        first_of_triple.setdefault(tuple(crossings[number, :3].tolist()), number)
    best = crossings[list(first_of_triple.values())[: 4 * k]]
    judged = mean_probabilities(model, best, contexts)
    order = judged[:, 0].argsort(descending=True, stable=True)[:k]
    rows = zip(best[order].tolist(), judged[order].tolist(), strict=True)
    bugs = [SkipTrigramBug(*crossing, *probabilities) for crossing, probabilities in rows]
    return BugSearch(bugs, crossings, ranking)


def crossings_of(triples: Triples, occurring: Triples) -> Int[Tensor, "crossing 5"]:
    """(A, B', C, C', B) for every two triples (A, B, C) and (A, B', C') unless (A, B', C) exists."""
    by_source: dict[int, list[tuple[int, int]]] = {}
    existing = {three_tokens(triple) for triple in occurring}
    for triple in triples:
        source, destination, completion = three_tokens(triple)
        by_source.setdefault(source, []).append((destination, completion))
        existing.add((source, destination, completion))
    rows = []
    for source, pairs in by_source.items():
        for other, wrong in pairs:
            for destination, right in pairs:
                if (source, destination, wrong) not in existing:
                    rows.append((source, destination, wrong, right, other))
    return torch.tensor(rows, dtype=torch.long).reshape(-1, 5)


def mean_probabilities(
    model: Any, crossings: Int[Tensor, "crossing 5"], contexts: Int[Tensor, "context pos"]
) -> Float[Tensor, "crossing 3"]:
    """Probability of wrong and right, and of wrong by the direct path, mean over the contexts."""
    total = torch.zeros(len(crossings), 3).to(model.W_U)
    # crossings share pairs of source and destination, and each pair is run once
    pairs, pair_of = torch.unique(crossings[:, :2], dim=0, return_inverse=True)
    for context in contexts:
        for first in range(0, len(pairs), ROWS):
            some = pairs[first : first + ROWS]
            paths = path_logits(
                model, torch.cat([context.expand(len(some), -1), some], dim=1), max_order=0
            )
            is_here = (pair_of >= first) & (pair_of < first + ROWS)
            rows, tokens = pair_of[is_here] - first, crossings[is_here, 2:4]
            direct = [name for name in (DIRECT, BIAS) if name in paths]
            full = paths.run.logits[:, -1].softmax(-1)[rows]
            alone = paths.sum(direct, at=-1).softmax(-1)[rows]
            probabilities = [full.gather(1, tokens), alone.gather(1, tokens[:, :1])]
            total[is_here] += torch.cat(probabilities, dim=1)
    return total / len(contexts)
