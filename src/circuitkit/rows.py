"""Rows of random tokens in which a span comes twice, to test whether a model uses the first pass.

`repeated_tokens` makes such rows, and `default_rows` makes them to fit a model. The tools for
induction, `effect` and `attribution` take them as `tokens`. The other functions find the positions
of earlier occurrences of a token, and measure the loss of each token.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from circuitkit.bridge import Model

from circuitkit.checks import checked, require_at_least, require_bridge


class Repeated(NamedTuple):
    """Rows in which a span of tokens comes twice, made by `repeated_tokens` or by hand.

    Parameters
    ----------
    tokens : token ids `[batch, pos]`: an opening token if there is one, the span, the span again
    period : the length of the span
    start : the position where the span first begins: 1 after an opening token, otherwise 0

    Notes
    -----
    Source: see `repeated_tokens`.
    """

    tokens: Int[Tensor, "batch pos"]
    period: int
    start: int


@checked
def repeated_tokens(
    d_vocab: int,
    period: int,
    *,
    batch: int = 8,
    bos: int | None = None,
    weights: Float[Tensor, " token"] | Int[Tensor, " token"] | None = None,
    generator: torch.Generator | None = None,
) -> Repeated:
    """Draw rows in which a span of random tokens comes twice.

    The tokens of a span differ from each other, so that there is one right answer to what followed
    a token the first time. They repeat only if the vocabulary is smaller than the span.

    Parameters
    ----------
    d_vocab : tokens are drawn from 0 to `d_vocab - 1`
    period : the length of the span
    batch : the number of rows
    bos : an opening token in front of the first span, which is drawn nowhere else
    weights : how often each token is drawn `[d_vocab]`, for example its count in a text
    generator : the source of randomness; if it is None, a new one with seed 0, so that equal calls
        give equal rows

    Returns
    -------
    `Repeated`, whose `tokens` are `[batch, 2 * period]`, or one longer with an opening token.

    Raises
    ------
    ValueError : if no token can be drawn, or `weights` is not one number of at least 0 per token

    Notes
    -----
    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", repeated random
    sequences.

    Examples
    --------
    >>> rows = repeated_tokens(50, 3, batch=1, bos=0)
    >>> rows.tokens.shape, bool((rows.tokens[:, 1:4] == rows.tokens[:, 4:7]).all())
    (torch.Size([1, 7]), True)
    """
    require_at_least(1, d_vocab=d_vocab)
    if period < 2 or batch < 1:
        raise ValueError(
            f"repeated_tokens was given period={period} and batch={batch}. "
            "A span needs at least 2 tokens, and there must be at least 1 row."
        )
    if bos is not None and not 0 <= bos < d_vocab:
        raise ValueError(f"bos={bos} is not a token: the vocabulary is 0 to {d_vocab - 1}.")
    chance = torch.ones(d_vocab) if weights is None else weights.detach().cpu().float().clone()
    if len(chance) != d_vocab or not bool((chance.isfinite() & (chance >= 0)).all()):
        raise ValueError(
            f"weights must be {d_vocab} numbers, finite and of at least 0, one for each token."
        )
    if bos is not None:
        chance[bos] = 0
    n_drawable = int((chance > 0).sum())
    if n_drawable == 0:
        raise ValueError("There is no token to draw. Use a larger d_vocab or other weights.")

    if generator is None:
        generator = torch.Generator().manual_seed(0)
    span = torch.multinomial(
        chance.expand(batch, -1), period, replacement=n_drawable < period, generator=generator
    )
    parts = [span, span]
    if bos is not None:
        parts.insert(0, torch.full((batch, 1), bos))
    return Repeated(torch.cat(parts, dim=1), period, len(parts) - 2)


@checked
def default_rows(model: "Model", *, period: int = 64, batch: int = 8) -> Repeated:
    """Draw two passes over a random span for a model, behind its tokenizer's opening token.

    Parameters
    ----------
    model : a `TransformerBridge`
    period : the length of the span; shorter if the context or the vocabulary is too small
    batch : the number of rows

    Notes
    -----
    Source: see `repeated_tokens`.
    """
    require_bridge(model)
    bos = getattr(model.tokenizer, "bos_token_id", None)
    n_opening = int(bos is not None)
    period = min(period, (model.cfg.n_ctx - n_opening) // 2, model.cfg.d_vocab - n_opening)
    return repeated_tokens(model.cfg.d_vocab, period, batch=batch, bos=bos)


@checked
def earlier_occurrences(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch dst src"]:
    """Mark the earlier positions that hold the same token as the destination.

    Parameters
    ----------
    tokens : token ids `[batch, pos]`

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> earlier_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]]
    """
    return (tokens[:, :, None] == tokens[:, None, :]).tril(-1)


@checked
def after_occurrences(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch dst src"]:
    """Mark the positions after earlier occurrences of the destination's token.

    An induction head attends to these positions.

    Parameters
    ----------
    tokens : token ids `[batch, pos]`

    Notes
    -----
    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", prefix matching.

    Examples
    --------
    >>> after_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]
    """
    return torch.nn.functional.pad(earlier_occurrences(tokens)[..., :-1], (1, 0))


def token_losses(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch next"]:
    """Compute the loss of predicting each next token, in nats.

    Parameters
    ----------
    logits : what a model predicts at each position
    tokens : the tokens that it read

    Returns
    -------
    Losses `[batch, pos - 1]`, `-log softmax(logits[t])[tokens[t + 1]]`: entry `t` belongs to the
    token at position `t + 1`. Logits in half precision are converted to float32 first.

    Notes
    -----
    Source: the usual cross-entropy.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    losses = []
    for row, ids in zip(logits[:, :-1], tokens.to(logits.device), strict=True):
        losses.append(torch.nn.functional.cross_entropy(row, ids[1:], reduction="none"))
    return torch.stack(losses)


def second_pass(
    logits: Float[Tensor, "batch pos d_vocab"], rows: Repeated
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Compute the loss and the accuracy of each row on the second pass over the span.

    The first token of the second pass is left out, because nothing predicts it.

    Parameters
    ----------
    logits : what a model predicts on `rows.tokens`
    rows : rows in which a span comes twice

    Returns
    -------
    Mean loss in nats `[batch]`, and the share of tokens that have the largest logit `[batch]`.

    Notes
    -----
    Source: see `circuitkit.induction.induction_loss`.
    """
    start = rows.start + rows.period
    logits = logits[:, start : start + rows.period]
    tokens = rows.tokens[:, start : start + rows.period].to(logits.device)
    is_right = logits[:, :-1].argmax(-1) == tokens[:, 1:]
    return token_losses(logits, tokens).mean(1), is_right.to(logits.dtype).mean(1)


def require_repeating(rows: Repeated) -> None:
    """Raise a `ValueError` if the span is too short or does not come twice where `rows` claims."""
    if rows.period < 2 or rows.start < 0:
        raise ValueError(
            f"The rows have period={rows.period} and start={rows.start}. The period must be at "
            "least 2, because nothing predicts the first token of a span, and the start at least "
            "0. Make rows with repeated_tokens(...)."
        )
    first, second = (rows.start + turn * rows.period for turn in (0, 1))
    passes = [rows.tokens[:, begin : begin + rows.period] for begin in (first, second)]
    if passes[1].shape[1] < rows.period or not torch.equal(*passes):
        raise ValueError(
            f"The rows do not hold the same {rows.period} tokens from position {first} and from "
            f"position {second} on. Make them with repeated_tokens(...)."
        )


def require_two_positions(tokens: Int[Tensor, "batch pos"]) -> None:
    """Raise a `ValueError` for rows in which no token is predicted."""
    if tokens.shape[1] < 2:
        raise ValueError(
            "Each token is compared with the prediction before it, so every row needs at least two "
            "positions. Give longer rows."
        )
