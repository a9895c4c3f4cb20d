"""Evidence in text: does the completion really become likelier when the source came before? Counted, or shipped."""

import json
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from circuitkit._contract import Count, Triples, must, public
from circuitkit._stored import stored_file


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
@must(lambda tokens: tokens.ndim < 3 and tokens.numel() and tokens.min() >= 0 or "ids, 0 or more, [pos] or [row, pos]")
@must(lambda window: window[0] <= window[1] or "(nearest, farthest) with 1 <= nearest <= farthest. Write window=(1, 32)")
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
            out[triple] = Evidence(with_source, hits, len(place) - with_source, int(hit.sum()) - hits)
    return [out[triple] for triple in wanted]


class SkipTrigramStatistics(NamedTuple):
    """What `skip_trigram_statistics` returns. **Source**: counted by `tools/train/skip_trigram_statistics.py`."""

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

    **Source**: counted over the training text by `tools/train/skip_trigram_statistics.py`.
    """
    from safetensors import safe_open

    with safe_open(stored_file("circuits", "skip_trigrams.safetensors"), framework="pt") as table:
        rows = table.get_tensor("evidence").tolist()
        words, occurring = table.get_tensor("words").long(), table.get_tensor("occurring").long()
        provenance = json.loads(table.metadata()["provenance"])
    return SkipTrigramStatistics({tuple(row[:3]): Evidence(*row[3:]) for row in rows}, words, occurring, provenance)
