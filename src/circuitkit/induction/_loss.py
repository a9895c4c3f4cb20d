"""How much a model gains from having seen something before: induction loss and in-context score."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._heads import require_bridge
from circuitkit.induction._check import need_tokens
from circuitkit.induction._scores import default_rows
from circuitkit.induction._stream import run, token_losses
from circuitkit.induction._tokens import Repeated


class InductionLoss(NamedTuple):
    """Loss on repeated random tokens, in nats a token.

    **Source**: see `induction_loss`.
    """

    first: float
    """Mean loss on the first pass over the span, which nothing predicts."""
    second: float
    """Mean loss on the second pass."""
    difference: float
    """`second - first`: negative when the model uses the first pass."""
    accuracy: float
    """Share of second-pass tokens that are the model's top choice."""


def induction_loss(
    model: Any, rows: Repeated | Tensor | None = None, *, without: Sequence[str] = (), fill: str = "zero"
) -> InductionLoss:
    """Loss on the second pass over a random span minus loss on the first.

    Both passes leave out their first token, which even a perfect induction head cannot know. `rows` comes from
    `repeated_tokens`, default as in `scores`. `without` leaves out heads or paths, see `hooks`.

    **Shapes**: `rows.tokens[batch, pos]` gives four numbers.
    **Error**: float32 rounding and the sampling error of the rows. **Source**: "In-context Learning and Induction
    Heads"; transformer-lens `evals.induction_loss` measures the second pass alone.

    >>> from circuitkit.induction import build_induction_model
    >>> result = induction_loss(build_induction_model(20, 16))
    >>> round(result.second, 3), result.accuracy
    (0.0, 1.0)
    """
    bridge = require_bridge(model, "induction_loss")
    if rows is not None and not isinstance(rows, Repeated):
        raise ValueError(
            f"induction_loss got rows of type {type(rows).__name__}; expected what repeated_tokens(...) returns, because "
            "it must know where each pass begins. Write induction_loss(model, repeated_tokens(d_vocab, period))."
        )
    rows = default_rows("induction_loss", bridge) if rows is None else rows
    tokens, period, start = rows
    if tokens.shape[1] < start + 2 * period:
        raise ValueError(
            f"induction_loss got rows of {tokens.shape[1]} positions with a span of {period}; expected two passes, "
            f"{start + 2 * period} positions, because the second is compared with the first. Use times=2."
        )
    logits = run("induction_loss", bridge, tokens, None, without, fill)
    tokens = tokens.to(logits.device)
    losses = token_losses(logits, tokens)
    second = slice(start + period, start + 2 * period - 1)
    first = float(losses[:, start : start + period - 1].mean())
    again = float(losses[:, second].mean())
    right = logits[:, second].argmax(-1) == tokens[:, start + period + 1 : start + 2 * period]
    return InductionLoss(first, again, again - first, float(right.float().mean()))


def losses_by_position(
    model: Any, tokens: Int[Tensor, "batch pos"], *, without: Sequence[str] = (), fill: str = "zero"
) -> Float[Tensor, "batch next"]:
    """Loss of predicting each next token, in nats: entry `t` is about the token at position `t + 1`.

    **Shapes**: `[batch, pos]` to `[batch, pos - 1]`. **Error**: float32 rounding.

    `-log softmax(logits[t])[tokens[t + 1]]`. **Source**: the usual cross-entropy.
    """
    logits = run("losses_by_position", model, tokens, None, without, fill)
    return token_losses(logits, tokens.to(logits.device))


def in_context_score(
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    *,
    early: int = 50,
    late: int | None = None,
    width: int = 1,
    without: Sequence[str] = (),
) -> float:
    """Loss late in a row minus loss early in it, averaged over rows: negative when context helps.

    `early` and `late` count predicted tokens, the first is 1; `late` defaults to the last. `width` averages over that
    many tokens ending there, which lowers the noise. **Error**: sampling error, large on few rows.
    **Source**: "In-context Learning and Induction Heads", 500th minus 50th token of rows of 512.
    """
    bridge = require_bridge(model, "in_context_score")
    n = need_tokens("in_context_score", bridge, tokens).shape[1] - 1
    late = n if late is None else late
    if not 1 <= width <= early < late <= n:
        raise ValueError(
            f"in_context_score got early={early}, late={late}, width={width} for rows with {n} predicted tokens; expected "
            "1 <= width <= early < late <= that number, because it compares two places in a row. Use longer rows or "
            "smaller numbers."
        )
    losses = losses_by_position(bridge, tokens, without=without).mean(0)
    return float(losses[late - width : late].mean() - losses[early - width : early].mean())
