"""Rows of random tokens that repeat, for any vocabulary, with no tokenizer; and where each token occurred before."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit.induction._check import need_count, need_positions

_WHAT = "repeated_tokens"


class Repeated(NamedTuple):
    """Rows in which one span of random tokens comes several times.

    **Source**: see `repeated_tokens`.
    """

    tokens: Int[Tensor, "batch pos"]
    """`[batch, pos]`: an opening token if there is one, then the span, then the span again."""
    period: int
    """Length of the span."""
    start: int
    """Position where the span first begins: 1 after an opening token, otherwise 0."""


def repeated_tokens(
    d_vocab: int,
    period: int,
    *,
    times: int = 2,
    batch: int = 8,
    bos: int | None = None,
    exclude: Sequence[int] = (),
    weights: Float[Tensor, " token"] | None = None,
    n_ctx: int | None = None,
    generator: torch.Generator | None = None,
) -> Repeated:
    r"""Rows `[bos] s s ...` in which a random span $s$ of `period` tokens comes `times` times.

    Within a span tokens are drawn without replacement, so that "what followed last time" has one answer; only when
    the vocabulary is smaller than the span are they drawn with replacement. Any model that predicts the second pass
    better than the first has used the first.

    **Shapes**: tokens `[batch, (bos is given) + times * period]`. `weights[token]` draws in proportion (a corpus's
    unigram counts); `exclude` and `bos` are never drawn. **Error**: none. `generator` defaults to a fresh one with
    seed 0: the same call gives the same rows, and the global random state is left alone.
    **Source**: "In-context Learning and Induction Heads" (2022), repeated random sequences.

    >>> rows = repeated_tokens(50, 3, batch=1, bos=0)
    >>> rows.tokens.shape, bool((rows.tokens[:, 1:4] == rows.tokens[:, 4:7]).all())
    (torch.Size([1, 7]), True)
    """
    for name, value, least in (
        ("d_vocab", d_vocab, 2),
        ("period", period, 2),
        ("times", times, 1),
        ("batch", batch, 1),
    ):
        need_count(_WHAT, name, value, least)
    start = int(bos is not None)
    if n_ctx is not None:
        fits = (n_ctx - start) // times
        opening = "1 + " if start else ""
        advice = (
            f"{opening}times * period = {opening}{times} * {period}. Use a period of at most {fits}, or fewer times."
        )
        need_positions(_WHAT, start + times * period, n_ctx, advice)
    chance = _chances(d_vocab, weights, [*exclude, *([] if bos is None else [bos])])
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    again = int((chance > 0).sum()) < period
    span = torch.multinomial(chance.expand(batch, -1), period, replacement=again, generator=generator)
    opening = torch.full((batch, start), 0 if bos is None else bos, dtype=torch.long)
    return Repeated(torch.cat([opening, *[span] * times], dim=1), period, start)


def _chances(d_vocab: int, weights: Tensor | None, never: list[int]) -> Tensor:
    """How likely each token is drawn, not normalised."""
    if weights is not None and (tuple(weights.shape) != (d_vocab,) or bool((weights < 0).any())):
        raise ValueError(
            f"{_WHAT} got weights of shape {tuple(weights.shape)}, smallest {float(weights.min()):.3g}; expected "
            f"({d_vocab},) with nothing negative, because each of the d_vocab tokens is drawn in proportion to its "
            "weight. Pass counts or probabilities."
        )
    beyond = [token for token in never if not 0 <= token < d_vocab]
    if beyond:
        raise ValueError(
            f"{_WHAT} got bos or exclude tokens {beyond}; expected ids in 0..{d_vocab - 1}, because d_vocab={d_vocab}. "
            "Use ids of this vocabulary, or bos=None."
        )
    chance = torch.ones(d_vocab) if weights is None else weights.detach().cpu().float().clone()
    chance[never] = 0
    if not chance.any():
        raise ValueError(
            f"{_WHAT} has no token left to draw: d_vocab={d_vocab}, excluded {sorted(set(never))}; expected at least "
            "one token with a positive weight, because spans are made of them. Exclude fewer."
        )
    return chance


def earlier_occurrences(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch dst src"]:
    """True where the source is before the destination and holds the same token.

    **Shapes**: `[batch, pos]` to `[batch, dst, src]`. **Error**: none.

    **Source**: this book; the mask behind `after_occurrences` and the duplicate-token score.

    >>> earlier_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]]
    """
    return (tokens[:, :, None] == tokens[:, None, :]).tril(-1)


def after_occurrences(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch dst src"]:
    """True where the source comes directly after an earlier occurrence of the destination's token.

    This is where an induction head looks. **Shapes**: `[batch, pos]` to `[batch, dst, src]`. **Error**: none.

    **Source**: "In-context Learning and Induction Heads", prefix matching.

    >>> after_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]
    """
    return torch.nn.functional.pad(earlier_occurrences(tokens)[..., :-1], (1, 0))
