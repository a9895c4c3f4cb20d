"""What a head adds to the logits if it attends to one position: copying and skip trigrams."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.ablation import Run, only_permanent_hooks, run
from circuitkit.heads import heads_of, in_full_precision
from circuitkit.names import parse
from circuitkit.parts import FrozenNorm, norm_before
from circuitkit.reports.rules import LEAST, LEAST_LOGITS, upper_tail

N_TRIALS = 4, 16
"""Each skip trigram is put at so many random places; the first ones only choose those worth more."""
BATCH = 16
WINDOW = 32
Candidate = tuple[str, int, int, int]
"""A head, a source, a destination and a completion."""


@dataclass(frozen=True, eq=False)
class Unembedding:
    """The map from the stream to the logits of some tokens, above their mean.

    Parameters
    ----------
    ids : the tokens
    W : `[d_model, id]`
    norm : the last norm with the divisors of a run
    """

    ids: Int[Tensor, " id"]
    W: Float[Tensor, "d_model id"]
    norm: FrozenNorm | None

    @classmethod
    def of(cls, done: Run, ids: Int[Tensor, " id"]) -> "Unembedding":
        """Read the map from a run."""
        norm = done.recording.final_norm()
        W = in_full_precision(done.model.W_U)[:, ids]
        if norm is not None:
            W = norm.fold(W)
        return cls(ids, W - W.mean(1, keepdim=True), norm)

    def logits(
        self, z: Float[Tensor, "row pos d_head"], W_O: Float[Tensor, "d_head d_model"]
    ) -> Float[Tensor, "row pos id"]:
        """Return what a head adds to the logits if it gathers `z`."""
        logits = z @ (W_O @ self.W)
        return logits if self.norm is None else logits / self.norm.scale


def values_of(done: Run, name: str) -> tuple[Tensor, Tensor]:
    """Return the values `[row, pos, d_head]` of a head, and its `W_O`."""
    (head,) = parse(name)
    W_O = in_full_precision(done.model.blocks[head.layer].attn.W_O)
    values = in_full_precision(done.recording[f"blocks.{head.layer}.attn.hook_v"])
    values = values.reshape(*done.tokens.shape, -1, W_O.shape[1])
    group = len(W_O) // values.shape[2]
    number = head.number or 0
    return values[:, :, number // group], W_O[number]


def copying(
    done: Run, unembedding: Unembedding, name: str
) -> tuple[Float[Tensor, " row"], float, Float[Tensor, ""]]:
    """Measure at how many positions a head would raise the token there most, if it attended there.

    Returns
    -------
    The share of positions by row; its control, the share for another token of the rows; and the
    p-value of the logits of these tokens, against the logits of all other tokens of the rows.
    """
    logits = unembedding.logits(*values_of(done, name))
    place = torch.searchsorted(unembedding.ids, done.tokens)
    best = logits.argmax(-1)
    n_tokens = len(unembedding.ids)
    table = torch.zeros(n_tokens, n_tokens).index_add(0, place.flatten(), logits.flatten(0, 1))
    table = table / torch.bincount(place.flatten())[:, None]  # [token attended to, token raised]
    is_own = torch.eye(n_tokens, dtype=torch.bool)
    others = table[~is_own]
    difference = table[is_own].mean() - others.mean() - LEAST_LOGITS
    p = upper_tail(difference, others.std() / n_tokens**0.5)
    control = (best.roll(1, 0) == place).float().mean()
    return (best == place).float().mean(1), float(control), p


def trigrams_by_weights(
    model: Any, name: str, among: Int[Tensor, " id"], k: int
) -> list[Candidate]:
    """Find the strongest skip trigrams of a head, from embeddings behind the norm and from weights.

    A source competes with `WINDOW - 1` typical tokens for the attention of a destination. The
    strength is this attention times what the source adds to the logit of the completion, above
    typical sources; see `circuitkit.skip_trigrams.strongest`, which leaves out norms.
    """
    head = replace(heads_of(model, name), turn=None, positions="absolute")
    norm = norm_before(model, parse(name)[0])
    read = in_full_precision(model.W_E[among])[None]
    if norm is not None:
        with only_permanent_hooks(norm):
            read = norm(read)
    query, key = head.side("Q", read)[0, 0], head.side("K", read)[0, 0]
    value = head.side("V", read)[0, 0]
    scores = query @ key.mT / head.scale  # [destination, source]
    content = scores - scores.logsumexp(-1, keepdim=True) + math.log(len(among))
    attention, destination = (content - math.log(WINDOW - 1)).sigmoid().max(0)
    W_U = in_full_precision(model.W_U)[:, among]
    effect = (value - value.mean(0)) @ (head.W_O[0] @ (W_U - W_U.mean(1, keepdim=True)))
    best = (attention[:, None] * effect).flatten().topk(min(k, effect.numel())).indices
    source, completion = best // len(among), best % len(among)
    ids = torch.stack([among[source], among[destination[source]], among[completion]], dim=1)
    return [(name, *triple) for triple in ids.tolist()]


class Placed(NamedTuple):
    """Random rows with pairs of a source and a destination, of which the first are candidates.

    Parameters
    ----------
    tokens : `[row, pos]`
    numbers : for each row, the numbers of the candidates in it
    pairs : where the source and the destination of each pair are `[row, pair, 2]`
    """

    tokens: Int[Tensor, "row pos"]
    numbers: list[list[int]]
    pairs: Int[Tensor, "row pair 2"]


def placed(
    candidates: list[Candidate], among: Tensor, opening: list[int], n_pos: int, n_trials: int
) -> Placed:
    """Put each candidate at random places in several rows; all other tokens are random."""
    generator = torch.Generator().manual_seed(n_trials)
    ids = torch.tensor([entry[1:3] for entry in candidates])  # [candidate, (source, destination)]
    n_pairs = max(1, n_pos // 4)
    tokens, numbers, pairs = [], [], []
    for _ in range(n_trials):
        order = torch.randperm(len(candidates), generator=generator)
        for chosen in order.split(n_pairs):
            row = among[torch.randint(len(among), (n_pos,), generator=generator)]
            places = torch.randperm(n_pos, generator=generator)[: 2 * n_pairs]
            places = places.view(-1, 2).sort(1).values
            row[places[: len(chosen)]] = ids[chosen]
            tokens.append(torch.cat([torch.tensor(opening, dtype=torch.long), row]))
            numbers.append(chosen.tolist())
            pairs.append(places + len(opening))
    return Placed(torch.stack(tokens), numbers, torch.stack(pairs))


def trigrams_in_text(
    model: Any,
    candidates: list[Candidate],
    among: Int[Tensor, " id"],
    opening: list[int],
    n_trials: int,
) -> list[tuple[float, float, float]]:
    """Measure what heads add to the logit of the completion where source and destination occur.

    Returns
    -------
    For each candidate: what the head adds through all occurrences of the source, above what it adds
    at a mean source; its control, the same for other pairs of tokens in the same row; and the
    p-value of an excess over the floor.
    """
    text = placed(candidates, among, opening, min(128, model.cfg.n_ctx - len(opening)), n_trials)
    found: list[list[Tensor]] = [[] for _ in candidates]
    for begin in range(0, len(text.tokens), BATCH):
        done = run(model, text.tokens[begin : begin + BATCH])
        unembedding = Unembedding.of(done, among)
        logits_of = {}
        for name in dict.fromkeys(name for name, *_ in candidates):
            logits = unembedding.logits(*values_of(done, name))
            logits_of[name] = logits - logits.mean(1, keepdim=True)
        for r, tokens in enumerate(done.tokens):
            sources, destinations = text.pairs[begin + r].T
            is_before = torch.arange(len(tokens)) < destinations[:, None]
            is_source = (tokens == tokens[sources, None]) & is_before  # [pair, pos]
            for place, number in enumerate(text.numbers[begin + r]):
                name, _, _, completion = candidates[number]
                attention = done.pattern(name)[r, destinations] * is_source
                column = torch.searchsorted(among, completion)
                added = attention @ logits_of[name][r, :, column]  # [pair]
                found[number].append(added.roll(-place))  # its own pair comes first
    return [compared(torch.stack(added)) for added in found]


def compared(added: Float[Tensor, "trial pair"]) -> tuple[float, float, float]:
    """Return the mean of the first pair, that of the others, and the p-value."""
    values, null = added[:, 0], added[:, 1:]
    error = ((values.var() + null.var()) / len(values)).sqrt()
    p = upper_tail(values.mean() - null.mean() - LEAST["skip trigram"], error)
    return float(values.mean()), float(null.mean()), float(p)


def tested_trigrams(
    model: Any, candidates: list[Candidate], among: Int[Tensor, " id"], opening: list[int]
) -> list[tuple[float, float, float]]:
    """Measure skip trigrams in a few places, and those that reach half of the floor in others.

    Returns
    -------
    See `trigrams_in_text`. The p-value is 1 after the first few places.
    """
    few, many = N_TRIALS
    first = trigrams_in_text(model, candidates, among, opening, few)
    result = [(value, control, 1.0) for value, control, _ in first]
    chosen = []
    for number, (value, control, _) in enumerate(first):
        if value - control >= LEAST["skip trigram"] / 2:
            chosen.append(number)
    if chosen:
        some = [candidates[number] for number in chosen]
        measured = trigrams_in_text(model, some, among, opening, many)
        for number, values in zip(chosen, measured, strict=True):
            result[number] = values
    return result
