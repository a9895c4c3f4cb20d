"""What a head adds to the logits if it attends to one position: copying and skip trigrams."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.ablation import run
from circuitkit.bridge import Model, only_permanent_hooks
from circuitkit.heads import in_full_precision
from circuitkit.names import parse
from circuitkit.norms import FrozenNorm
from circuitkit.parts import n_heads, norm_before
from circuitkit.reading import heads_of
from circuitkit.reports.rules import LEAST, LEAST_LOGITS, upper_tail
from circuitkit.residual import unembedding_matrix, writer_matrix
from circuitkit.rows import Rows
from circuitkit.runs import Run

N_FIRST_TRIALS = 4
"""Each skip trigram is put at so many random places first, to find those that are worth more."""
N_TRIALS = 16
"""The others are put at so many random places, from which their p-values are computed."""
LONGEST = 128
"""The rows in which skip trigrams are measured have at most so many positions."""
BATCH = 16
"""So many of these rows are run at once."""
WINDOW = 32
"""A source of a skip trigram competes with so many tokens, itself included, for the attention."""


class Candidate(NamedTuple):
    """A skip trigram of a head, as token ids."""

    head: str
    source: int
    destination: int
    completion: int


# The logits of what a head gathers


@dataclass(frozen=True, eq=False)
class Unembedding:
    """The map from what the heads of a run gather to the logits of some tokens, above their mean.

    Parameters
    ----------
    done : the run
    ids : the tokens, in ascending order
    W : `[d_model, id]`
    norm : the last norm with the divisors of the run
    """

    done: Run
    ids: Int[Tensor, " id"]
    W: Float[Tensor, "d_model id"]
    norm: FrozenNorm | None

    @classmethod
    def of(cls, done: Run, ids: Int[Tensor, " id"]) -> "Unembedding":
        """Read the map from a run."""
        norm = done.recording.final_norm()
        W = in_full_precision(unembedding_matrix(done.model))[:, ids]
        if norm is not None:
            W = norm.fold(W)
        return cls(done, ids, W - W.mean(1, keepdim=True), norm)

    def logits(self, name: str, z: Float[Tensor, "row pos d_head"]) -> Float[Tensor, "row pos id"]:
        """Return what a head adds to the logits if it gathers `z`; norms keep their divisors."""
        W_O = in_full_precision(writer_matrix(self.done.model, name))
        logits = z @ (W_O @ self.W)
        behind_attention = f"blocks.{parse(name)[0].layer}.ln1_post.hook_scale"
        if behind_attention in self.done.recording.hook_names:
            logits = logits / self.done.recording[behind_attention]
        return logits if self.norm is None else logits / self.norm.scale

    def logits_by_source(self, name: str) -> Float[Tensor, "row pos id"]:
        """Return what a head would add to the logits if it attended to one position, for each."""
        (head,) = parse(name)
        recording = self.done.recording
        values = in_full_precision(recording[f"blocks.{head.layer}.attn.hook_v"])
        d_head = recording.heads_z(head.layer).shape[-1]
        values = values.reshape(*self.done.tokens.shape, -1, d_head)
        # where several heads share their values, there are fewer values than heads
        group = (head.number or 0) * values.shape[2] // n_heads(self.done.model, head.layer or 0)
        return self.logits(name, values[:, :, group])

    def column(self, tokens: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return where the logits of these tokens are."""
        return torch.searchsorted(self.ids, tokens)


# Copying


class Copying(NamedTuple):
    """How often a head would raise the token to which it attends.

    Parameters
    ----------
    share : the share of positions whose token the head would raise most, for each row
    control : the share of positions at which it would raise the token of another row most
    p : the p-value of the logits of these tokens, against those of all other tokens of the rows
    """

    share: Float[Tensor, " row"]
    control: Float[Tensor, ""]
    p: Float[Tensor, ""]


def copying(unembedding: Unembedding, logits: Float[Tensor, "row pos id"]) -> Copying:
    """Measure at how many positions a head would raise the token there most, if it attended there.

    Parameters
    ----------
    unembedding : of a run on random rows
    logits : what the head would add to the logits, by source; with the other sign, copying is that it
        would lower the token there most
    """
    own = unembedding.column(unembedding.done.tokens)
    most_raised = logits.argmax(-1)
    share = (most_raised == own).float().mean(1)
    in_next_row = most_raised.roll(1, 0)
    control = (in_next_row == own).float().mean()

    # the mean logits by token attended to and token raised; copying is their diagonal
    n_tokens = len(unembedding.ids)
    zeros = logits.new_zeros(n_tokens, n_tokens)
    total = zeros.index_add(0, own.flatten(), logits.flatten(0, 1))
    table = total / torch.bincount(own.flatten())[:, None]
    is_own = torch.eye(n_tokens, dtype=torch.bool)
    others = table[~is_own]
    difference = table[is_own].mean() - others.mean() - LEAST_LOGITS
    error = others.std() / n_tokens**0.5
    return Copying(share, control, upper_tail(difference, error))


def lowered_p(
    unembedding: Unembedding,
    logits: Float[Tensor, "row pos id"],
    pattern: Float[Tensor, "row dst src"],
) -> Float[Tensor, ""]:
    """Return the p-value of a head lowering, where it attends, the token there and no other token.

    A head may rest on the first token, which is left out, and then it lowers nothing. The control is
    what the head adds to the tokens of another row.
    """
    received = pattern.mean(1)[:, 1:].to(logits)
    own = unembedding.column(unembedding.done.tokens)[:, 1:]
    lowered = [
        -(received * logits[:, 1:].gather(2, tokens[:, :, None])[..., 0]).sum(1)
        for tokens in (own, own.roll(1, 0))
    ]
    difference = lowered[0] - lowered[1]
    return upper_tail(difference.mean() - LEAST_LOGITS, difference.std() / len(own) ** 0.5)


# Skip trigrams


def trigrams_by_weights(
    model: Model, name: str, among: Int[Tensor, " id"], k: int
) -> list[Candidate]:
    """Find the strongest skip trigrams of a head, from embeddings behind the norm and from weights.

    A source competes with `WINDOW - 1` typical tokens for the attention of a destination. The
    strength is this attention times what the source adds to the logit of the completion, above
    typical sources; see `circuitkit.skip_trigrams.strongest`, which leaves out norms.

    Parameters
    ----------
    model, name : the model, and the head
    among : the tokens of which skip trigrams consist, in ascending order
    k : how many are returned
    """
    head = replace(heads_of(model, name), turn=None, positions="absolute")
    norm = norm_before(model, parse(name)[0])
    embedding = in_full_precision(writer_matrix(model, "embed")[among])[None]
    if norm is not None:
        with only_permanent_hooks(norm):
            embedding = norm(embedding)
    W_O = in_full_precision(writer_matrix(model, name))
    W_U = in_full_precision(unembedding_matrix(model))[:, among]
    W_U = W_U - W_U.mean(1, keepdim=True)
    head, embedding = head.to(W_U.dtype), embedding.to(W_U)
    scores = head.scores(embedding)[0, 0]  # [destination, source]
    value = head.side("V", embedding)[0, 0]

    # for each source, the destination that attends to it most
    above_typical = scores - scores.logsumexp(-1, keepdim=True) + math.log(len(among))
    attention = (above_typical - math.log(WINDOW - 1)).sigmoid()
    attention, destination = attention.max(0)

    logits = (value - value.mean(0)) @ (W_O @ W_U)  # [source, completion]
    strength = attention[:, None] * logits
    best = strength.flatten().topk(min(k, strength.numel())).indices
    source = best // len(among)
    ids = among[torch.stack([source, destination[source], best % len(among)], 1)]
    return [Candidate(name, *trigram) for trigram in ids.tolist()]


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
    ids = torch.tensor([[trigram.source, trigram.destination] for trigram in candidates])
    n_pairs = max(1, n_pos // 4)
    tokens, numbers, pairs = [], [], []
    for _ in range(n_trials):
        order = torch.randperm(len(candidates), generator=generator)
        for chosen in order.split(n_pairs):
            row = among[torch.randint(len(among), (n_pos,), generator=generator)]
            places = torch.randperm(n_pos, generator=generator)[: 2 * n_pairs]
            places = places.view(-1, 2).sort(1).values  # a source is before its destination
            row[places[: len(chosen)]] = ids[chosen]
            tokens.append(torch.cat([torch.tensor(opening, dtype=torch.long), row]))
            numbers.append(chosen.tolist())
            pairs.append(places + len(opening))
    return Placed(torch.stack(tokens), numbers, torch.stack(pairs))


class Measured(NamedTuple):
    """What a head adds to the logit of a completion, in random text.

    Parameters
    ----------
    value : what it adds through all occurrences of the source, above what it adds at a mean source
    control : the same for other pairs of tokens in the same row
    p : the p-value of an excess over the floor
    """

    value: float
    control: float
    p: float


def trigrams_in_text(
    model: Model,
    candidates: list[Candidate],
    among: Int[Tensor, " id"],
    opening: list[int],
    n_trials: int,
) -> list[Measured]:
    """Measure what heads add to the logit of the completion where source and destination occur."""
    n_pos = min(LONGEST, model.cfg.n_ctx - len(opening))
    text = placed(candidates, among, opening, n_pos, n_trials)
    names = {trigram.head for trigram in candidates}
    found: list[list[Tensor]] = [[] for _ in candidates]
    for begin in range(0, len(text.tokens), BATCH):
        done = run(model, Rows.of(text.tokens[begin : begin + BATCH]))
        unembedding = Unembedding.of(done, among)
        logits_of = {}
        for name in names:
            logits = unembedding.logits_by_source(name)
            logits_of[name] = logits - logits.mean(1, keepdim=True)
        for r, tokens in enumerate(done.tokens):
            sources, destinations = text.pairs[begin + r].T
            is_source = occurrences(tokens, sources, destinations)
            for place, number in enumerate(text.numbers[begin + r]):
                candidate = candidates[number]
                column = unembedding.column(torch.tensor(candidate.completion))
                logits = logits_of[candidate.head][r, :, column]  # [pos]
                attention = done.pattern(candidate.head)[r, destinations].to(logits)  # [pair, pos]
                added = (attention * is_source) @ logits  # [pair]
                found[number].append(added.roll(-place))  # its own pair comes first
    return [compared(torch.stack(added)) for added in found]


def occurrences(
    tokens: Int[Tensor, " pos"], sources: Int[Tensor, " pair"], destinations: Int[Tensor, " pair"]
) -> Tensor:
    """Return where the source token of each pair is, before its destination, as `[pair, pos]`."""
    is_source = tokens == tokens[sources, None]
    is_before = torch.arange(len(tokens)) < destinations[:, None]
    return is_source & is_before


def compared(added: Float[Tensor, "trial pair"]) -> Measured:
    """Compare the first pair, which is the candidate, with the others."""
    values = added[:, 0]
    null = added[:, 1:]
    difference = values.mean() - null.mean() - LEAST["skip trigram"]
    error = ((values.var() + null.var()) / len(values)).sqrt()
    p = upper_tail(difference, error)
    return Measured(float(values.mean()), float(null.mean()), float(p))


def tested_trigrams(
    model: Model, candidates: list[Candidate], among: Int[Tensor, " id"], opening: list[int]
) -> list[Measured]:
    """Measure skip trigrams in a few places, and those that reach half of the floor in others.

    The p-value of those that were measured in a few places only is 1.
    """
    first = trigrams_in_text(model, candidates, among, opening, N_FIRST_TRIALS)
    result = [measured._replace(p=1.0) for measured in first]
    half = LEAST["skip trigram"] / 2
    chosen = [i for i, trigram in enumerate(first) if trigram.value - trigram.control >= half]
    if chosen:
        some = [candidates[number] for number in chosen]
        again = trigrams_in_text(model, some, among, opening, N_TRIALS)
        for number, measured in zip(chosen, again, strict=True):
            result[number] = measured
    return result
