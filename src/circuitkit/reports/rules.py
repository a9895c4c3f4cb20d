"""Decision rules of a report: which lines it names, and how many of them may be false.

A line says that a head shows a behaviour, that it adds a skip trigram, or that a wire carries a
behaviour. The measure of a line is computed on random tokens, and a second time, in the same run,
where the tokens are shuffled (its control). The report names a line if

* the measure exceeds its control by a floor, `LEAST`, because many rows make the smallest
  difference significant, and
* the p-value of an excess over the floor passes the procedure of Benjamini and Hochberg over all
  lines of its kind, which keeps the expected share of false lines among the named ones at
  `FALSE_SHARE`.

A p-value is the upper tail of a normal distribution that is fitted to the control: to the values on
shuffled tokens, or without random directions. The lines of a circuit follow from its wires.

Source: Benjamini and Hochberg 1995, "Controlling the False Discovery Rate"; the measures and the
nulls are this book's.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit.bridge import Model
from circuitkit.data import stored
from circuitkit.reports.lines import Behaviour, Line, Results

OF_OUTPUT = (Behaviour.COPYING, Behaviour.SUPPRESSION)
"""Behaviours of what a head writes: it raises or lowers the token to which it attends."""
ATTENTION = tuple(kind for kind in Behaviour if kind not in OF_OUTPUT)
"""Behaviours of a pattern. Their measure is the attention to the positions of the behaviour."""

FALSE_SHARE = 0.05
LEAST = {
    **dict.fromkeys(map(str, Behaviour), 0.25),
    "wire": 0.25,
    "group wire": 0.25,
    "skip trigram": 1.5,
    "predicts repeats": 0.1,
}
"""By how much a measure must exceed its control: a share, or logits for a skip trigram."""
LEAST_LOGITS = 0.25
"""The p-value of copying is for more logits than this above the mean token, or below it."""
CLEAR = 0.4
"""Wires are tried where a behaviour exceeds its control by this, so that a share of it is defined."""

N_ROWS = 16
LONGEST = 128
"""Random rows have at most so many positions behind the opening token."""
STUDENT = 2.13
"""The mean of 16 rows lies within so many standard errors in 95 of 100 cases."""


Pairs = Bool[Tensor, "row dst src"]
"""Pairs of a destination and a source that are marked."""

# Random rows


class RandomRows(NamedTuple):
    """Rows of random tokens that repeat, and the pairs to which each behaviour attends.

    Parameters
    ----------
    tokens : token ids `[row, pos]`; a span of different tokens fills each row again and again
    marked : for each behaviour in `ATTENTION`, its pairs in the first two spans `[row, dst, src]`
    """

    tokens: Int[Tensor, "row pos"]
    marked: dict[str, Pairs]


def random_rows(model: Model, *, few_tokens: bool = False) -> RandomRows:
    """Draw rows for a model, behind its tokenizer's opening token if there is one.

    Every row has a span of another length, so the pairs that repeat in one row do not repeat in
    another row. The attention to the pairs of other rows is therefore the control.

    Parameters
    ----------
    model : a `TransformerBridge`
    few_tokens : whether each token comes about three times in a span, so that two tokens in a row
        are needed to find the place in the span before; otherwise the tokens of a span are different
    """
    opening = torch.tensor(opening_tokens(model), dtype=torch.long)
    start = len(opening)
    n_pos = min(LONGEST, model.cfg.n_ctx - start, 2 * (model.cfg.d_vocab - start))
    periods = periods_in(n_pos)
    chance = torch.ones(model.cfg.d_vocab)
    chance[opening] = 0
    generator = torch.Generator().manual_seed(0)
    rows = []
    for period in periods:
        span = torch.multinomial(chance, period, generator=generator)
        if few_tokens:
            n_different = max(2, period // 3)
            span = span[torch.randint(n_different, (period,), generator=generator)]
        repeated = span.repeat(5)[:n_pos]
        rows.append(torch.cat([opening, repeated]))
    return RandomRows(torch.stack(rows), marked_pairs(start, n_pos, periods))


def opening_tokens(model: Model) -> list[int]:
    """Return the token that opens each row of a model, or none if its tokenizer has no such token."""
    bos = getattr(model.tokenizer, "bos_token_id", None)
    return [] if bos is None else [bos]


def periods_in(n_pos: int) -> list[int]:
    """Return up to `N_ROWS` different periods, each of which fits twice into so many positions."""
    shortest = n_pos // 4 + 1
    longest = n_pos // 2
    n_rows = min(N_ROWS, longest - shortest + 1)
    if n_rows < 2:
        raise ValueError(
            f"{n_pos} positions are too few for random rows that repeat. At least 6 are."
        )
    return torch.linspace(shortest, longest, n_rows).int().tolist()


def marked_pairs(start: int, n_pos: int, periods: list[int]) -> dict[str, Pairs]:
    """Return the pairs of each behaviour in rows that repeat with these periods from `start` on."""
    position = torch.arange(start + n_pos)
    distance = position[:, None] - position  # [dst, src]
    is_later = position[:, None] > start
    by_row = []
    for period in periods:
        second = start + period
        third = second + period
        in_second = ((position >= second) & (position < third))[:, None]
        by_row.append(
            {
                Behaviour.PREFIX_MATCHING: (distance == period - 1) & in_second,
                Behaviour.PREVIOUS_TOKEN: (distance == 1) & is_later,
                Behaviour.DUPLICATE_TOKEN: (distance == period) & in_second,
                Behaviour.FIRST_TOKEN: (position == 0) & is_later,
            }
        )
    return {kind: torch.stack([pairs[kind] for pairs in by_row]) for kind in ATTENTION}


def shuffled(kind: str, marked: Pairs) -> Iterator[Pairs]:
    """Give pairs for the control: those of other rows, or one random source for each destination."""
    generator = torch.Generator().manual_seed(1)
    for shift in range(1, len(marked)):
        if kind in (Behaviour.PREFIX_MATCHING, Behaviour.DUPLICATE_TOKEN):
            yield marked.roll(shift, dims=0)
        else:
            yield with_random_sources(marked, generator)


def with_random_sources(marked: Pairs, generator: torch.Generator) -> Pairs:
    """Give every destination one random source that is not after it."""
    chance = torch.rand(marked.shape, generator=generator).tril()
    source = chance.argmax(-1, keepdim=True)
    pairs = torch.zeros_like(marked).scatter(2, source, True)
    is_destination = marked.any(-1, keepdim=True)
    return pairs & is_destination


# Measures and their p-values


class Score(NamedTuple):
    """A measure of each head on each row, and the same on shuffled tokens."""

    values: Float[Tensor, "row head"]
    null: Float[Tensor, "shuffle row head"]

    @property
    def excess(self) -> Float[Tensor, " head"]:
        """By how much the measure exceeds its control."""
        return self.values.mean(0) - self.null.mean((0, 1))


def attention_score(
    pattern: Float[Tensor, "row head dst src"], rows: RandomRows, kind: str
) -> Score:
    """Measure the attention to the pairs of a behaviour, and to shuffled pairs."""
    marked = rows.marked[kind]
    values = attention_to(pattern, marked)
    null = [attention_to(pattern, pairs) for pairs in shuffled(kind, marked)]
    return Score(values, torch.stack(null))


def attention_to(
    pattern: Float[Tensor, "row head dst src"], marked: Pairs
) -> Float[Tensor, "row head"]:
    """Return the mean attention to marked pairs, by row."""
    total = torch.einsum("rhds,rds->rh", pattern, marked.to(pattern))
    n_pairs = marked.sum((1, 2)).to(pattern)
    return total / n_pairs[:, None]


def excess_weights(rows: RandomRows, kind: str) -> Float[Tensor, "row dst src"]:
    """Return weights whose sum with a pattern is a behaviour above its control, as in `Score`."""
    marked = rows.marked[kind]
    of_behaviour = equal_weights(marked)
    of_control = [equal_weights(pairs) for pairs in shuffled(kind, marked)]
    excess = of_behaviour - torch.stack(of_control).mean(0)
    return excess / len(marked)


def equal_weights(marked: Pairs) -> Float[Tensor, "row dst src"]:
    """Give all marked pairs of a row the same weight, with sum 1."""
    return marked / marked.sum((1, 2), keepdim=True)


def attention_p(score: Score, kind: str) -> Float[Tensor, " head"]:
    """Return the p-values of heads, with the variance of rows and that of the shuffles."""
    of_mean = score.values.var(0) / len(score.values)
    of_shuffles = score.null.mean(1).var(0)
    error = (of_mean + of_shuffles).sqrt()
    return upper_tail(score.excess - LEAST[kind], error)


def upper_tail(difference: Tensor, error: Tensor) -> Tensor:
    """Return how often a normal variable with this standard deviation exceeds the difference."""
    z = difference.double() / error.double().clamp_min(1e-6)
    return torch.special.erfc(z / 2**0.5) / 2


# Decisions


def decided(results: Results) -> Results:
    """Return the lines of all parts, which now say whether the report names them."""
    limits = {}
    for kind in LEAST:
        of_kind = [line for lines in results.values() for line in lines if line.measure == kind]
        limits[kind] = largest_accepted([line.p for line in of_kind])
    return {part: [judged(line, limits) for line in lines] for part, lines in results.items()}


def judged(line: Line, limits: dict[str, float]) -> Line:
    """Return a line that says whether the report names it, if a rule decides this."""
    kind = line.measure
    if kind not in LEAST:
        return line
    return replace(line, named=line.p <= limits[kind] and line.excess >= LEAST[kind])


def largest_accepted(p_values: list[float]) -> float:
    """Return the largest p-value that the procedure of Benjamini and Hochberg accepts, or 0.

    Examples
    --------
    >>> largest_accepted([0.01, 0.04, 0.03, 0.9])
    0.01
    >>> largest_accepted([0.04, 0.03])  # the smaller one exceeds 0.025, and passes with the larger
    0.04
    """
    largest = 0.0
    for place, p in enumerate(sorted(p_values), start=1):
        if p <= FALSE_SHARE * place / len(p_values):
            largest = p
    return largest


def bench_result() -> dict[str, Any]:
    """Return how often the rules were right on small models whose circuits are known.

    Returns
    -------
    The commit of the rules, the number of models, and for each kind of line: how many lines were
    tried; how many were named and right, named and false, missed, or named and unclear; in how many
    models the right lines are; and bounds of the power and of the share of false lines at 95%.
    `studies/bench/judge.py` stores this.
    """
    return stored("reports", "bench.json")
