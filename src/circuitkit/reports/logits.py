"""What a head adds to the logits if it attends to one position: copying and skip trigrams."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.ablation import run
from circuitkit.bridge import Model
from circuitkit.heads import in_full_precision
from circuitkit.names import parse
from circuitkit.norms import FrozenNorm
from circuitkit.reading import heads_of
from circuitkit.reports.rules import LEAST, LEAST_LOGITS, upper_tail
from circuitkit.residual import unembedding_matrix, writer_matrix
from circuitkit.rows import Rows
from circuitkit.runs import Run
from circuitkit.skip_trigrams import token_rows

N_FIRST_TRIALS = 4
"""Each skip trigram is put at so many random places first, to find those that are worth more."""
N_TRIALS = 16
"""The others are put at so many random places, from which their p-values are computed."""
LONGEST = 128
"""The rows in which skip trigrams are measured have at most so many positions."""
BATCH = 16
"""So many of these rows are run at once."""
SHARE_OF_SPREAD = 0.25
"""A skip trigram must add this share of the standard deviation of the logits, if it is over the floor."""
N_BEST = 64
"""At most so many skip trigrams of a head are found by weights."""
N_OF_EACH = 16
"""For each source, so many destinations and so many completions are combined."""
SPARSE = 0.125
"""Where the total effect is measured, so many of the pairs of a row are candidates."""
N_TYPICAL = 256
"""So many tokens stand for all sources that compete for the attention."""
BLOCK = 2**23
"""Sources times tokens: the size of the tables that are looked through for one head."""
WINDOW = 32
"""A source of a skip trigram competes with so many tokens, itself included, for the attention."""

AT_FIRST = "unembed.hook_in", lambda stream, hook: stream[:, :1]
"""With this hook, a model computes logits at the first position only, which is faster where nobody reads them."""


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
    def of(cls, done: Run, ids: Int[Tensor, " id"], *, of_all: bool = False) -> "Unembedding":
        """Read the map from a run; logits are above the mean of these tokens, or of all tokens."""
        norm = done.recording.final_norm()
        W_U = in_full_precision(unembedding_matrix(done.model))
        W = W_U[:, ids]
        W = W - (W_U if of_all else W).mean(1, keepdim=True)
        if norm is not None:
            W = norm.fold(W)
        return cls(done, ids, W, norm)

    def logits(self, name: str, z: Float[Tensor, "row pos d_head"]) -> Float[Tensor, "row pos id"]:
        """Return what a head adds to the logits if it gathers `z`; norms keep their divisors."""
        W_O = in_full_precision(writer_matrix(self.done.model, name))
        logits = z @ (W_O @ self.W)
        for divisor in divisors(self.done, name, self.norm):
            logits = logits / divisor
        return logits

    def logits_by_source(self, name: str) -> Float[Tensor, "row pos id"]:
        """Return what a head would add to the logits if it attended to one position, for each."""
        (head,) = parse(name)
        values = self.done.recording.heads_v(head.layer or 0)[:, :, head.number]
        return self.logits(name, in_full_precision(values))

    def column(self, tokens: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return where the logits of these tokens are."""
        return torch.searchsorted(self.ids, tokens)


def divisors(done: Run, name: str, norm: FrozenNorm | None) -> list[Tensor]:
    """Return by what norms behind a head divide in a run: one behind its layer, and the last one."""
    result = [] if norm is None else [norm.scale]
    behind_attention = f"blocks.{parse(name)[0].layer}.ln1_post.hook_scale"
    if behind_attention in done.recording.hook_names:
        result.append(done.recording[behind_attention])
    return result


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


class Text(NamedTuple):
    """What is known of a model before skip trigrams of its heads are searched.

    Parameters
    ----------
    unembedding : of all tokens, in random text
    floor : what a skip trigram must add: `LEAST`, or more if the logits of the model are large
    opening : the tokens before the text
    read : what the heads of a layer read of all tokens, see `before`
    """

    unembedding: Unembedding
    floor: float
    opening: list[int]
    read: Any = None

    @classmethod
    def of(cls, model: Model, among: Int[Tensor, " id"], opening: list[int]) -> "Text":
        """Run a model on a few rows of random text."""
        generator = torch.Generator().manual_seed(0)
        n_pos = min(LONGEST, model.cfg.n_ctx - len(opening))
        tokens = among[torch.randint(len(among), (2, n_pos), generator=generator)]
        start = torch.tensor(opening, dtype=torch.long).expand(len(tokens), -1)
        done = run(model, Rows.of(torch.cat([start, tokens], 1)))
        spread = float(done.logits.float().std(-1).mean())
        floor = max(LEAST["skip trigram"], SHARE_OF_SPREAD * spread)
        return cls(Unembedding.of(done, among), floor, opening)

    def before(self, layer: int) -> "Text":
        """Return the same with what the heads of a layer read of each token alone, `[1, id, d_model]`."""
        done, among, W, _ = vars(self.unembedding).values()
        read = token_rows(done.model, f"L{layer}H0")[among]
        return self._replace(read=read[None].to(W))


def n_sources(n_tokens: int) -> int:
    """Return how many sources are looked through, as many as `BLOCK` allows."""
    return min(n_tokens, max(1, BLOCK // n_tokens))


def trigrams_by_weights(text: Text, name: str) -> list[tuple[float, Candidate]]:
    """Find the strongest skip trigrams of a head, from embeddings behind the norm and from weights.

    A source competes with `WINDOW - 1` typical tokens for the attention of a destination. The
    strength is this attention times what the source adds to the logit of the completion, above
    typical sources, divided by the divisors that norms have in random text. All destinations and all
    completions are looked through, and the sources that add most to all logits, as many as `n_sources`
    says: all, if the vocabulary has at most 2,896 tokens.

    Returns
    -------
    The strength and the tokens of each, the strongest first.
    """
    done, among, W_U, final_norm = vars(text.unembedding).values()
    model = done.model
    head = replace(heads_of(model, name), turn=None, positions="absolute")
    head = head.to(W_U.dtype)
    OV = in_full_precision(writer_matrix(model, name)) @ W_U
    for divisor in divisors(done, name, final_norm):
        OV = OV / divisor.mean()
    value = head.side("V", text.read)[0, 0]
    value = value - value.mean(0)
    size = (value @ (OV @ OV.mT) * value).sum(1)
    sources = size.topk(n_sources(len(among))).indices
    logits, completion = (value[sources] @ OV).topk(min(N_OF_EACH, len(among)), 1)

    # the scores of typical sources, of which some are enough for a mean
    query = head.side("Q", text.read)
    key = head.side("K", text.read[:, sources])
    typical = head.side("K", text.read[:, :: max(1, len(among) // N_TYPICAL)])
    scores, destination = [], []
    for begin in range(0, len(among), BLOCK // 1024):
        some = query[:, :, begin : begin + BLOCK // 1024]
        of_typical = head.scores_of(some, typical)[0, 0]
        mean = of_typical.logsumexp(-1, keepdim=True) - math.log(of_typical.shape[-1])
        above_typical = head.scores_of(some, key)[0, 0] - mean
        best = above_typical.topk(min(N_OF_EACH, len(above_typical)), 0)
        scores.append(best.values)
        destination.append(best.indices + begin)
    scores, place = torch.cat(scores).topk(min(N_OF_EACH, len(among)), 0)
    destination = torch.cat(destination).gather(0, place)

    attention = (scores - math.log(WINDOW - 1)).sigmoid()
    strength = attention.mT[:, :, None] * logits[:, None]  # [source, destination, completion]
    # where the attention is nearly 1, the larger score comes first
    rank = strength * (1 + 0.01 * scores.clamp_min(0).mT[:, :, None])
    best = rank.flatten().topk(min(N_BEST, rank.numel())).indices
    s, d, c = torch.unravel_index(best, rank.shape)
    ids = among[torch.stack([sources[s], destination[d, s], completion[s, c]], 1)]
    candidates = [Candidate(name, *trigram) for trigram in ids.tolist()]
    return list(zip(strength.flatten()[best].tolist(), candidates, strict=True))


class Placed(NamedTuple):
    """Random rows with pairs of a source and a destination, of which the first are candidates.

    Parameters
    ----------
    tokens : `[row, pos]`
    numbers : for each row, the numbers of the candidates in it
    pairs : where the source and the destination of each pair are `[row, pair, 2]`
    without : the tokens with other sources
    """

    tokens: Int[Tensor, "row pos"]
    numbers: list[list[int]]
    pairs: Int[Tensor, "row pair 2"]
    without: Int[Tensor, "row pos"]


def placed(text: Text, candidates: list[Candidate], n_trials: int, crowd: float = 1.0) -> Placed:
    """Put each candidate at random places in several rows; all other tokens are random.

    At most a share `crowd` of the pairs of a row are candidates, so that these do not disturb each other.
    """
    among, start = text.unembedding.ids, torch.tensor(text.opening, dtype=torch.long)
    n_pos = min(LONGEST, text.unembedding.done.model.cfg.n_ctx - len(start))
    generator = torch.Generator().manual_seed(n_trials)
    ids = torch.tensor([[trigram.source, trigram.destination] for trigram in candidates])
    n_pairs = max(1, n_pos // 4)
    tokens, numbers, pairs = [], [], []
    for _ in range(n_trials):
        order = torch.randperm(len(candidates), generator=generator)
        for chosen in order.split(max(1, int(crowd * n_pairs))):
            row = among[torch.randint(len(among), (n_pos,), generator=generator)]
            places = torch.randperm(n_pos, generator=generator)[: 2 * n_pairs]
            places = places.view(-1, 2).sort(1).values  # a source is before its destination
            row[places[: len(chosen)]] = ids[chosen]
            tokens.append(torch.cat([start, row]))
            numbers.append(chosen.tolist())
            pairs.append(places + len(start))
    places = torch.stack(pairs)
    others = among[torch.randint(len(among), places.shape[:2], generator=generator)]
    without = torch.stack(tokens).scatter(1, places[:, :, 0], others)
    return Placed(torch.stack(tokens), numbers, places, without)


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
    text: Text, candidates: list[Candidate], n_trials: int, *, total: bool = False
) -> list[Measured]:
    """Measure what heads add to the logit of the completion where source and destination occur.

    Parameters
    ----------
    text : the model, the tokens of the text, and the floor
    candidates : what is measured
    n_trials : how often each candidate is placed
    total : whether the total effect is measured, see `effect_of_sources`, and not what the head writes
    """
    model = text.unembedding.done.model
    rows = placed(text, candidates, n_trials, SPARSE if total else 1.0)
    names = {trigram.head for trigram in candidates}
    completions = torch.tensor([trigram.completion for trigram in candidates]).unique()
    unembedding = Unembedding.of(text.unembedding.done, completions, of_all=True)
    found: list[list[Tensor]] = [[] for _ in candidates]
    for begin in range(0, len(rows.tokens), BATCH):
        batch = slice(begin, begin + BATCH)
        with model.hooks(fwd_hooks=[] if total else [AT_FIRST]):
            done = run(model, Rows.of(rows.tokens[batch]))
        unembedding = replace(unembedding, done=done, norm=done.recording.final_norm())
        if total:
            other = run(model, Rows.of(rows.without[batch]))
            logits_of = {
                name: effect_of_sources(done, other, name)[..., completions] for name in names
            }
        else:
            logits_of = {name: unembedding.logits_by_source(name) for name in names}
        for r, tokens in enumerate(done.tokens):
            sources, destinations = rows.pairs[begin + r].T
            is_source = occurrences(tokens, sources, destinations)
            for place, number in enumerate(rows.numbers[begin + r]):
                candidate = candidates[number]
                column = unembedding.column(torch.tensor(candidate.completion))
                added = logits_of[candidate.head][r, :, column]  # [pos]
                if total:
                    added = added[destinations]
                else:
                    attention = done.pattern(candidate.head)[r, destinations].to(added)
                    added = (attention * is_source) @ (added - added.mean())
                found[number].append(added.roll(-place))  # its own pair comes first
    return [compared(torch.stack(added), text.floor) for added in found]


def effect_of_sources(done: Run, other: Run, head: str) -> Float[Tensor, "row pos id"]:
    """Return what the sources change in the logits, above the mean of all, as far as a head is needed.

    This is their effect in the whole model, less their effect if the head is replaced by its mean. The rows
    of the other run have other sources.
    """
    effect = done.logits - other.logits
    for a_run, sign in ((done, -1), (other, 1)):
        effect += sign * run(done.model, a_run.rows, without=head, fill=a_run).logits
    return effect - effect.mean(-1, keepdim=True)


def occurrences(
    tokens: Int[Tensor, " pos"], sources: Int[Tensor, " pair"], destinations: Int[Tensor, " pair"]
) -> Tensor:
    """Return where the source token of each pair is, before its destination, as `[pair, pos]`."""
    is_source = tokens == tokens[sources, None]
    is_before = torch.arange(len(tokens)) < destinations[:, None]
    return is_source & is_before


def compared(added: Float[Tensor, "trial pair"], floor: float) -> Measured:
    """Compare the first pair, which is the candidate, with the others."""
    values = added[:, 0]
    null = added[:, 1:]
    difference = values.mean() - null.mean() - floor
    error = ((values.var() + null.var()) / len(values)).sqrt()
    p = upper_tail(difference, error)
    return Measured(float(values.mean()), float(null.mean()), float(p))


def tested_trigrams(text: Text, candidates: list[Candidate]) -> list[Measured]:
    """Measure skip trigrams in a few places, and those that reach half of the floor in others.

    The p-value of those that were measured in a few places only is 1.
    """
    first = trigrams_in_text(text, candidates, N_FIRST_TRIALS)
    result = [measured._replace(p=1.0) for measured in first]
    chosen = [i for i, found in enumerate(first) if found.value - found.control >= text.floor / 2]
    if chosen:
        again = trigrams_in_text(text, [candidates[i] for i in chosen], N_TRIALS)
        for number, measured in zip(chosen, again, strict=True):
            result[number] = measured
    return result
