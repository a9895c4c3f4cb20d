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
shuffled tokens, or without random directions. The lines of a circuit follow from its wires. Source: Benjamini and Hochberg 1995,
"Controlling the False Discovery Rate"; the measures and the nulls are this book's.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Row = dict[str, Any]
FALSE_SHARE = 0.05
ATTENTION = ("prefix matching", "previous token", "duplicate token", "first token")
"""Behaviours of a pattern. Their measure is the attention to the positions of the behaviour."""
LEAST = dict.fromkeys((*ATTENTION, "copying", "wire"), 0.25) | {"skip trigram": 1.5}
"""By how much a measure must exceed its control: a share, or logits for a skip trigram."""
CLEAR = 0.4
"""Wires are tried where a behaviour exceeds its control by this, so that a share of it is defined."""
LEAST_LOGITS = 0.25
"""The p-value of copying is for more logits than this above the mean token."""
N_ROWS = 16
STUDENT = 2.13
"""The mean of 16 rows lies within so many standard errors in 95 of 100 cases."""


# Random rows


class RandomRows(NamedTuple):
    """Rows of random tokens that repeat, and the pairs to which each behaviour attends.

    Parameters
    ----------
    tokens : token ids `[row, pos]`; a span of different tokens fills each row again and again
    marked : for each behaviour in `ATTENTION`, its pairs in the first two spans `[row, dst, src]`
    """

    tokens: Int[Tensor, "row pos"]
    marked: dict[str, Bool[Tensor, "row dst src"]]


def random_rows(model: Any, *, few_tokens: bool = False, longest: int = 128) -> RandomRows:
    """Draw rows for a model, behind its tokenizer's opening token if there is one.

    Every row has a span of another length, so the pairs that repeat in one row do not repeat in
    another row. The attention to the pairs of other rows is therefore the control.

    Parameters
    ----------
    model : a `TransformerBridge`
    few_tokens : whether each token comes about three times in a span, so that two tokens in a row
        are needed to find the place in the span before; otherwise the tokens of a span are different
    longest : the largest number of positions
    """
    bos = getattr(model.tokenizer, "bos_token_id", None)
    opening = torch.tensor([] if bos is None else [bos], dtype=torch.long)
    start = len(opening)
    n = min(longest, model.cfg.n_ctx - start, 2 * (model.cfg.d_vocab - start))
    periods = torch.linspace(n // 4 + 1, n // 2, min(N_ROWS, n // 2 - n // 4)).int().tolist()
    if len(periods) < 2:
        raise ValueError(f"{n} positions are too few for random rows that repeat. At least 6 are.")
    generator = torch.Generator().manual_seed(0)
    chance = torch.ones(model.cfg.d_vocab)
    chance[opening] = 0
    position = torch.arange(start + n)
    distance = position[:, None] - position
    tokens, after, same = [], [], []
    for period in periods:
        span = torch.multinomial(chance, period, generator=generator)
        if few_tokens:
            span = span[torch.randint(max(2, period // 3), (period,), generator=generator)]
        tokens.append(torch.cat([opening, span.repeat(5)[:n]]))
        is_second = (position >= start + period) & (position < start + 2 * period)
        after.append((distance == period - 1) & is_second[:, None])
        same.append((distance == period) & is_second[:, None])
    is_later = position[:, None] > start
    everywhere = (len(periods), -1, -1)
    marked = {
        "prefix matching": torch.stack(after),
        "previous token": ((distance == 1) & is_later).expand(everywhere),
        "duplicate token": torch.stack(same),
        "first token": ((position == 0) & is_later).expand(everywhere),
    }
    return RandomRows(torch.stack(tokens), marked)


def shuffled(kind: str, marked: Bool[Tensor, "row dst src"]) -> Iterator[Tensor]:
    """Give pairs for the control: those of other rows, or one random source for each destination."""
    generator = torch.Generator().manual_seed(1)
    for turn in range(1, len(marked)):
        if kind in ("prefix matching", "duplicate token"):
            yield marked.roll(turn, 0)
        else:
            chance = torch.rand(marked.shape, generator=generator).tril()
            source = chance.argmax(-1, keepdim=True)
            yield torch.zeros_like(marked).scatter(2, source, True) & marked.any(-1, keepdim=True)


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
    null = [attention_to(pattern, pairs) for pairs in shuffled(kind, marked)]
    return Score(attention_to(pattern, marked), torch.stack(null))


def attention_to(
    pattern: Float[Tensor, "row head dst src"], marked: Bool[Tensor, "row dst src"]
) -> Float[Tensor, "row head"]:
    """Return the mean attention to marked pairs, by row."""
    total = torch.einsum("rhds,rds->rh", pattern, marked.to(pattern))
    return total / marked.sum((1, 2)).to(pattern)[:, None]


def excess_weights(rows: RandomRows, kind: str) -> Float[Tensor, "row dst src"]:
    """Return weights whose sum with a pattern is a behaviour above its control, as in `Score`."""
    weights = [
        pairs / pairs.sum((1, 2), keepdim=True) for pairs in shuffled(kind, rows.marked[kind])
    ]
    marked = rows.marked[kind] / rows.marked[kind].sum((1, 2), keepdim=True)
    return (marked - torch.stack(weights).mean(0)) / len(marked)


def attention_p(score: Score, kind: str) -> Float[Tensor, " head"]:
    """Return the p-values of heads, with the variance of rows and that of the shuffles."""
    variance = score.values.var(0) / len(score.values) + score.null.mean(1).var(0)
    return upper_tail(score.excess - LEAST[kind], variance.sqrt())


def upper_tail(difference: Tensor, error: Tensor) -> Tensor:
    """Return how often a normal variable with this standard deviation exceeds the difference."""
    z = difference.double() / error.double().clamp_min(1e-6)
    return torch.special.erfc(z / 2**0.5) / 2


# Decisions


def decide(rows: list[Row]) -> None:
    """Write into each row of a line, under "named", whether the report names it."""
    for kind, least in LEAST.items():
        of_kind = [row for row in rows if row["measure"] == kind]
        passing = discoveries([row["p"] for row in of_kind])
        for row, passes in zip(of_kind, passing, strict=True):
            row["named"] = passes and row["value"] - (row["control"] or 0) >= least


def discoveries(p_values: list[float]) -> list[bool]:
    """Return which p-values the procedure of Benjamini and Hochberg accepts.

    Examples
    --------
    >>> discoveries([0.01, 0.04, 0.03, 0.9])
    [True, False, False, False]
    """
    limit = 0.0
    for place, p in enumerate(sorted(p_values), start=1):
        if p <= FALSE_SHARE * place / len(p_values):
            limit = p
    return [p <= limit for p in p_values]
