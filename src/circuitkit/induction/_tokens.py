"""Rows of random tokens that repeat, for any vocabulary, with no tokenizer; and where each token occurred before."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._contract import Count, Natural, Several, must, public


class Repeated(NamedTuple):
    """Rows in which one span of random tokens comes several times. **Source**: see `repeated_tokens`."""

    tokens: Int[Tensor, "batch pos"]
    """`[batch, pos]`: an opening token if there is one, then the span, then the span again."""
    period: int
    """Length of the span."""
    start: int
    """Position where the span first begins: 1 after an opening token, otherwise 0."""


def _drawable(d_vocab: int, bos: int | None, exclude: Sequence[int], weights: Tensor | None) -> Any:
    never = [*exclude, *([] if bos is None else [bos])]
    fits = weights is None or (len(weights) == d_vocab and not bool((weights < 0).any()))
    fits = fits and max(never, default=0) < d_vocab and bool(_chances(d_vocab, weights, never).any())
    return fits or f"ids in 0..{d_vocab - 1} and {d_vocab} weights, none negative, that leave a token to draw"


@public
@must(lambda n_ctx, period, times, bos: n_ctx is None or (bos is not None) + times * period <= n_ctx
     or f"a period of at most {(n_ctx - (bos is not None)) // times}, because the model's context ends there, or fewer times")
@must(_drawable)
def repeated_tokens(
    d_vocab: Several,
    period: Several,
    *,
    times: Count = 2,
    batch: Count = 8,
    bos: Natural | None = None,
    exclude: Sequence[Natural] = (),
    weights: Float[Tensor, " token"] | None = None,
    n_ctx: Count | None = None,
    generator: torch.Generator | None = None,
) -> Repeated:
    """Rows `[bos] s s ...` in which a random span $s$ of `period` tokens comes `times` times.

    Tokens of a span differ, so that "what followed last time" has one answer, unless the vocabulary is smaller than the span.
    **Shapes**: tokens `[batch, (bos is given) + times * period]`. `weights[token]` draws in proportion (a corpus's unigram
    counts); `exclude` and `bos` are never drawn. `generator`: left out, one with seed 0, so the same call gives the same
    rows. **Error**: none. **Source**: "In-context Learning and Induction Heads" (2022), repeated random sequences.

    >>> rows = repeated_tokens(50, 3, batch=1, bos=0)
    >>> rows.tokens.shape, bool((rows.tokens[:, 1:4] == rows.tokens[:, 4:7]).all())
    (torch.Size([1, 7]), True)
    """
    start = int(bos is not None)
    chance = _chances(d_vocab, weights, [*exclude, *([] if bos is None else [bos])])
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    again = int((chance > 0).sum()) < period
    span = torch.multinomial(chance.expand(batch, -1), period, replacement=again, generator=generator)
    opening = torch.full((batch, start), 0 if bos is None else bos, dtype=torch.long)
    return Repeated(torch.cat([opening, *[span] * times], dim=1), period, start)


def _chances(d_vocab: int, weights: Tensor | None, never: list[int]) -> Tensor:
    """How likely each token is drawn, not normalised."""
    chance = torch.ones(d_vocab) if weights is None else weights.detach().cpu().float().clone()
    chance[never] = 0
    return chance


@public
def earlier_occurrences(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch dst src"]:
    """True where the source is before the destination and holds the same token, `[batch, dst, src]`. **Source**: this book.

    >>> earlier_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]]
    """
    return (tokens[:, :, None] == tokens[:, None, :]).tril(-1)


@public
def after_occurrences(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch dst src"]:
    """True where the source comes directly after an earlier occurrence of the destination's token: where induction heads look.

    **Shapes**: `[batch, pos]` to `[batch, dst, src]`. **Source**: "In-context Learning and Induction Heads", prefix matching.

    >>> after_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]
    """
    return torch.nn.functional.pad(earlier_occurrences(tokens)[..., :-1], (1, 0))
