"""Chapter 2: stored counts of skip trigrams, and the search for their bugs."""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.bridge import Model
from circuitkit.checks import checked, require_at_least
from circuitkit.data import stored_file
from circuitkit.paths import BIAS, DIRECT, path_logits
from circuitkit.rows import to_tokens
from circuitkit.skip_trigrams import TRIPLE
from circuitkit_book.skip_trigram_evidence import COUNTS, Triples, three_tokens, with_shares

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BugSearch", "SkipTrigramBug", "Statistics", "find_bugs", "shipped_statistics"]

ROWS = 512
"""Rows of tokens that are run together."""


class Statistics(NamedTuple):
    """What `shipped_statistics` returns.

    Notes
    -----
    Source: counted by `studies/edition-2/train/skip_trigram_statistics.py`.
    """

    evidence: "pd.DataFrame"
    """The counts of `count_evidence` for the strongest skip trigrams of the one-layer model's heads;
    the index is (source, destination, completion)."""
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
    import pandas as pd
    from safetensors import safe_open

    with safe_open(stored_file("circuits", "skip_trigrams.safetensors"), framework="pt") as table:
        rows = table.get_tensor("evidence").tolist()
        words = table.get_tensor("words").long()
        occurring = table.get_tensor("occurring").long()
        provenance = json.loads(table.metadata()["provenance"])
    counts = pd.DataFrame(rows, columns=[*TRIPLE, *COUNTS]).set_index(TRIPLE)
    return Statistics(with_shares(counts), words, occurring, provenance)


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
    model: Model,
    triples: Triples,
    contexts: Int[Tensor, "context pos"],
    k: int = 10,
    *,
    occurring: Triples = (),
) -> BugSearch:
    """Cross all triples that share a source, and measure which crossings the model predicts.

    A head adds to the logit of C its attention from B to A, times a number that depends on A and C
    alone. So if one head makes A B -> C and A B' -> C', it also raises C after A B', unless other
    paths lower it.

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
    to_tokens(model, crossings[:, :3].unique()[:, None])  # an error for ids outside the vocabulary
    ranking = mean_probability(model, crossings, contexts[:2])
    first_of_triple: dict[tuple[int, ...], int] = {}
    wrong_triples = [tuple(triple) for triple in crossings[:, :3].tolist()]
    for number in ranking.argsort(descending=True, stable=True).tolist():
        first_of_triple.setdefault(wrong_triples[number], number)
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


@torch.no_grad()
def mean_probability(
    model: Model, crossings: Int[Tensor, "crossing 5"], contexts: Int[Tensor, "context pos"]
) -> Float[Tensor, " crossing"]:
    """Probability of each wrong completion, mean over the contexts."""
    # crossings share pairs of source and destination, and each pair is run once
    pairs, pair_of = torch.unique(crossings[:, :2], dim=0, return_inverse=True)
    total = torch.zeros(len(crossings)).to(model.W_U)
    for context in contexts:
        texts = torch.cat([context.expand(len(pairs), -1), pairs], dim=1)
        last = torch.cat([model(rows)[:, -1] for rows in texts.split(ROWS)])
        total += last.softmax(-1)[pair_of, crossings[:, 2]]
    return total / len(contexts)


def mean_probabilities(
    model: Model, crossings: Int[Tensor, "crossing 5"], contexts: Int[Tensor, "context pos"]
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
