"""Skip-trigram bugs: a head that serves A B -> C and A B' -> C' raises C after A B' as well."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Count, Triples, ids, must, public, sizes
from circuitkit.anatomy import anatomy
from circuitkit.circuits._paths import BIAS, DIRECT, path_logits


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
@must(lambda contexts, model: contexts.shape[1] <= (most := sizes(model)[1] - 2)
     or f"at most {most} tokens, because two more are appended. Write contexts[:, :{most}]")
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
    kept = list({tuple(crossings[i, :3].tolist()): i for i in reversed(order)}.values())[::-1][: 4 * k]
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
    model: Any, crossings: Int[Tensor, "crossing 5"], contexts: Int[Tensor, "context pos"], batch: int
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
            alone = paths.sum([name for name in paths if name in (DIRECT, BIAS)], at=-1).softmax(-1)[rows]
            direct[here] += alone.gather(1, crossings[here, 2:3])[:, 0] / len(contexts)
    return full, direct
