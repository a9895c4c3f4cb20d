"""Skip trigrams `source ... destination -> completion` of a head, ranked by its weights.

A head that attends from the destination to an earlier source adds the source's row of the OV table
to the logits. Which source it attends to, the QK table decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit.bridge import Model, only_permanent_hooks, submodules
from circuitkit.checks import checked, require_at_least, require_not_negative
from circuitkit.first_use import require_unembedding_of_stream
from circuitkit.heads import Heads, require_scores
from circuitkit.names import SIDES, parse
from circuitkit.parts import head_names, norm_before
from circuitkit.reading import heads_of, require_attention_head
from circuitkit.residual import reader_matrix, require_products, writer_matrix

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["strongest"]

TRIPLE = ["source", "destination", "completion"]
BLOCK = 2**22
"""Numbers in a block of a large table: larger blocks are no faster, because they leave the cache."""


@checked
def strongest(
    model: Model,
    head: str,
    k: int = 20,
    *,
    unigram: Float[Tensor, " d_vocab"] | Int[Tensor, " d_vocab"] | None = None,
    likelihood: Float[Tensor, "d_vocab d_vocab"] | None = None,
    among: Bool[Tensor, " d_vocab"] | None = None,
    window: int = 32,
    min_together: float = 0.0,
) -> "pd.DataFrame":
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
    A DataFrame, the strongest triple first; fewer than `k` rows if no others raise a completion.
    The index is the triple as text. The columns are the token ids (`source`, `destination` and
    `completion`), the `strength`, by which the rows are ranked, the expected `attention` of the
    destination to one source token among typical others, and the `effect`, which full attention to
    the source would add to the logit of the completion.

    Raises
    ------
    ValueError : for tables that do not belong to the vocabulary, gated heads, a name that is no
        attention head, and a model that normalises its whole stream (BERT)

    Notes
    -----
    With $r$ the content factor of A over that of a typical token, $E_{A'} \exp s(B, A')$, and $p$
    = 1/`window`, A gets attention $w = r p / (1 + (r - 1) p)$. In the place of a typical token, it
    changes the logit of C by $w$ times $e = W_{OV}[A, C] - E_{A'} W_{OV}[A', C]$, minus the mean
    over C. The strength is $w e$, or with `likelihood` $P(C|B)\, w e$, the gain in probability to
    first order. The head reads as if the stream held the embedding of one token and nothing else:
    behind the norm before it, with its biases, norms and cap, and without positions (under rotary
    positions, the distance is 0). Norms behind it act as in `virtual_weights`, so in a model with a
    last norm, effects and strengths are still to be divided by its divisor in a text. Error: the
    ranking is exact for these formulas; they are an approximation that
    a text (`circuitkit_book.skip_trigram_evidence`) and the model must confirm. Source: "A Mathematical Framework for Transformer
    Circuits", skip trigrams, which are read off by eye there.

    Examples
    --------
    >>> import circuitkit as ck
    >>> strongest(ck.load_model("one-layer"), "L0H0", 1).index[0]
    "' gu' ... ' cur' -> ' morning'"
    """
    import pandas as pd  # takes half a second

    require_products(model)
    require_unembedding_of_stream(model)
    require_attention_head(model, head)
    d_vocab = len(model.W_E)
    require_tables(d_vocab, unigram=unigram, likelihood=likelihood, among=among)
    require_at_least(1, window=window, k=k)
    require_not_negative(min_together=min_together)
    tables = HeadTables.of(model, head, unigram, window)
    ids = torch.arange(d_vocab) if among is None else among.nonzero().flatten()
    ids = ids.to(model.W_E.device)
    counts = torch.ones(d_vocab) if unigram is None else unigram
    # how often two tokens meet by chance within the window is the product of these numbers
    meetings = (counts * (window / counts.sum()) ** 0.5).to(model.W_E)[ids]
    chance = None if likelihood is None else likelihood.to(model.W_E)[ids][:, ids]
    meet = Meetings(meetings, min_together)
    best = best_gains(tables, ids, chance, meet)
    strength, source, completion = largest_products(tables, ids, best, k)
    destination = best_destinations(tables, ids, chance, meet, source, completion)

    triples = torch.stack([ids[source], ids[destination], ids[completion]], dim=1)[strength > 0]
    a, b, c = triples.T
    table = pd.DataFrame(triples.tolist(), columns=TRIPLE)
    table["strength"] = strength[strength > 0].tolist()
    table["attention"] = tables.attention(b, a).diagonal().tolist()
    table["effect"] = tables.effect(a, c).diagonal().tolist()
    table.index = [trigram_text(model, row) for row in triples.tolist()]
    return table


def require_tables(d_vocab: int, **tables: Tensor | None) -> None:
    """Raise a `ValueError` for a table that does not have one entry of at least 0 for each token."""
    for name, table in tables.items():
        if table is None:
            continue
        is_possible = table.isfinite() & (table >= 0)
        if set(table.shape) != {d_vocab} or not bool(table.any() and is_possible.all()):
            raise ValueError(
                f"{name} has the shape {tuple(table.shape)}. It needs a finite entry of at least 0 "
                f"for each of the {d_vocab} tokens of this model, and not all of them 0."
            )


def trigram_text(model: Model, ids: Sequence[int]) -> str:
    """Three tokens in words, or as ids if the model has no tokenizer."""
    words = [str(i) if model.tokenizer is None else repr(model.tokenizer.decode([i])) for i in ids]
    return "{} ... {} -> {}".format(*words)


# The approximation behind the ranking: one source among typical tokens


def token_rows(model: Model, head: str) -> Float[Tensor, "d_vocab d_model"]:
    """What a head would read if the stream held the embedding of one token and nothing else."""
    rows = writer_matrix(model, "embed")[None]
    for norm in (submodules(model).get("embed_ln"), norm_before(model, parse(head)[0])):
        if norm is not None:
            with only_permanent_hooks(norm):
                rows = norm(rows)
    return rows[0]


@dataclass(frozen=True)
class HeadTables:
    """What one head makes of single tokens, and how often typical tokens occur.

    Parameters
    ----------
    head : the head, which turns queries and keys into scores
    queries, keys : `[d_vocab, d_head]`
    values, logits : `[d_vocab, d_head]` and `[d_head, d_vocab]`; their product is the OV table,
        minus its mean over typical sources and over completions
    typical : `[d_vocab]`, sums to 1
    window : the source competes with `window - 1` typical tokens
    """

    head: Heads
    queries: Tensor
    keys: Tensor
    values: Tensor
    logits: Tensor
    typical: Tensor
    window: int

    @classmethod
    @torch.no_grad()
    def of(cls, model: Model, name: str, unigram: Tensor | None, window: int) -> "HeadTables":
        """Read the tables of a head."""
        head = heads_of(model, name)
        require_scores(head)
        # where a norm divides the queries of a whole layer (OLMo 2), all its heads are needed
        heads = (
            head if head.norm_over == 1 else heads_of(model, head_names(model, int(head.layers[0])))
        )
        row = heads.names.index(name)
        read = token_rows(model, name)
        unturned = replace(heads, turn=None, positions="absolute")
        queries, keys, values = (unturned.side(side, read)[row] for side in SIDES)
        if heads.turn is not None:
            # all tokens at one position: what is left of the rotation is its gain
            position = torch.zeros(len(read), dtype=torch.long, device=read.device)
            queries, keys = heads.turn(queries, position), heads.turn(keys, position)
        counts = torch.ones_like(read[:, 0]) if unigram is None else unigram.to(read)
        typical = counts / counts.sum()
        logits = writer_matrix(model, name) @ reader_matrix(model, "unembed")
        logits = logits - logits.mean(1, keepdim=True)
        return cls(head, queries, keys, values - typical @ values, logits, typical, window)

    def attention(
        self, destinations: Int[Tensor, " dst"], sources: Int[Tensor, " src"]
    ) -> Float[Tensor, "dst src"]:
        """Expected attention of each destination to one source among typical tokens."""
        scores = self.head.scores_of(self.queries[destinations], self.keys)  # [dst, d_vocab]
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


@dataclass(frozen=True)
class Meetings:
    """How often two tokens meet by chance: the product of their numbers, which must not be below `least`."""

    numbers: Float[Tensor, " token"]
    least: float

    def too_few(self, rows: slice, columns: Tensor | slice) -> Tensor:
        """Where a destination and a source meet too seldom, `[destination, source]`."""
        return self.numbers[rows, None] * self.numbers[columns] < self.least


def best_gains(
    tables: HeadTables,
    ids: Int[Tensor, " token"],
    likelihood: Float[Tensor, "token token"] | None,
    meetings: Meetings,
) -> Float[Tensor, "source completion"]:
    """For each source A and completion C, the largest `P(C|B) w(B, A)`.

    Without `likelihood` it is the same for every C, so the result is `[source, 1]`.
    """
    n_tokens = len(ids)
    best = torch.zeros(n_tokens, 1 if likelihood is None else n_tokens).to(tables.typical)
    # a block of destinations at a time: the whole table is [50,000, 50,000] for a GPT-2
    for rows in blocks_of(n_tokens, len(tables.typical)):
        attention = tables.attention(ids[rows], ids)  # [destination, source]
        attention[meetings.too_few(rows, slice(None))] = 0
        for number, weights in enumerate(attention, rows.start):
            gains = weights[:, None]  # [source, 1]
            if likelihood is not None:
                gains = gains * likelihood[number]  # [source, completion]
            torch.maximum(best, gains, out=best)
    return best


def best_destinations(
    tables: HeadTables,
    ids: Int[Tensor, " token"],
    likelihood: Float[Tensor, "token token"] | None,
    meetings: Meetings,
    sources: Int[Tensor, " k"],
    completions: Int[Tensor, " k"],
) -> Int[Tensor, " k"]:
    """The destination B that has the largest `P(C|B) w(B, A)`, for some pairs of A and C."""
    gains = []
    for rows in blocks_of(len(ids), len(tables.typical)):
        attention = tables.attention(ids[rows], ids[sources])  # [destination, k]
        attention[meetings.too_few(rows, sources)] = 0
        gains.append(attention if likelihood is None else attention * likelihood[rows, completions])
    return torch.cat(gains).argmax(0)


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
