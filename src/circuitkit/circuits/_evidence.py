"""Evidence in text: does the completion really become likelier when the source came before?"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from circuitkit._contract import Count, Share, Triples, must, public


class Evidence(NamedTuple):
    """Counts for one triple over a text.

    The completion's share with the source is `hits_with / n_with`, without it `hits_without / n_without`.
    **Source**: see `corpus_evidence`.
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

    The source must lie between `window[0]` and `window[1]` tokens before the destination (1 = right before it); the
    completion must be the very next token. Rows are separate texts; one long row is read through document borders.

    **Error**: exact counts. Evidence, not proof: a source can stand for its topic, and counts on training text say
    what there was to learn, not what holds elsewhere.

    **Source**: this book.

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


@public
@must(lambda tokens, distance: (len(tokens) > distance + 1 and 0 <= int(tokens.min()) <= int(tokens.max()) < 2**20)
     or f"ids from 0 to {2**20 - 1}, more than {distance + 1} of them, because three of them make one number here")
def corpus_trigrams(
    tokens: Int[Tensor, " pos"], *, distance: Count = 1, min_count: Count = 40, min_share: Share = 0.3
) -> Int[Tensor, "triple 5"]:
    """Triples that a text teaches: rows (source, destination, completion, n, hits), most frequent pair first.

    The source stands exactly `distance` tokens before the destination; the pair occurs `n >= min_count` times and the
    completion follows in `hits >= min_share * n` of them. **Error**: exact counts.

    **Source**: this book.

    >>> corpus_trigrams(torch.tensor([1, 2, 3, 1, 2, 3, 1, 2, 4]), min_count=2).tolist()
    [[1, 2, 3, 3, 2], [2, 3, 1, 2, 2], [3, 1, 2, 2, 2], [1, 2, 4, 3, 1]]
    """
    size = int(tokens.max()) + 1
    source, destination, completion = tokens[: -distance - 1], tokens[distance:-1], tokens[distance + 1 :]
    keys, hits = torch.unique((source * size + destination) * size + completion, return_counts=True)
    pairs, which = torch.unique(keys // size, return_inverse=True)
    n = torch.zeros(len(pairs), dtype=torch.long).index_add_(0, which, hits)[which]
    kept = (n >= min_count) & (hits >= min_share * n)
    keys, n, hits = keys[kept], n[kept], hits[kept]
    table = torch.stack([keys // size**2, keys // size % size, keys % size, n, hits], dim=1)
    return table[torch.argsort(hits, descending=True, stable=True)]
