"""How much a model gains from having seen something before: induction loss and in-context score."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Count, Names, ids, must, public
from circuitkit.induction._scores import default_rows
from circuitkit.induction._stream import Fill, run, second_pass, token_losses
from circuitkit.induction._tokens import Repeated


class InductionLoss(NamedTuple):
    """Loss on repeated random tokens, in nats a token. **Source**: see `induction_loss`."""

    first: float
    """Mean loss on the first pass over the span, which nothing predicts."""
    second: float
    """Mean loss on the second pass."""
    difference: float
    """`second - first`: negative when the model uses the first pass."""
    accuracy: float
    """Share of second-pass tokens that are the model's top choice."""


@public
@ids("rows")
@must(lambda rows: torch.equal(*(rows.tokens[:, rows.start + i * rows.period :][:, : rows.period] for i in (0, 1)))
     or f"two equal passes of {rows.period} from position {rows.start} on, because they are compared. Use times=2")
def induction_loss(
    model: AnyModel, rows: Repeated | None = None, *, without: Names = (), fill: Fill = "zero"
) -> InductionLoss:
    """Loss on the second pass over a random span minus loss on the first.

    Both passes leave out their first token, which even a perfect induction head cannot know. `rows` comes from `repeated_tokens`,
    default as in `scores`. `without` leaves out parts and wires, see `Anatomy.run`. **Shapes**: `rows.tokens[batch, pos]` gives
    four numbers. **Error**: float32 rounding and the sampling error of the rows. **Source**: "In-context Learning and Induction
    Heads"; transformer-lens `evals.induction_loss` measures the second pass alone.

    >>> from circuitkit.induction import build_induction_model
    >>> result = induction_loss(build_induction_model(20, 16))
    >>> round(result.second, 3), result.accuracy
    (0.0, 1.0)
    """
    rows = default_rows(model) if rows is None else rows
    logits = run("induction_loss", model, rows.tokens, without=without, fill=fill)
    one = slice(rows.start, rows.start + rows.period)
    first = float(token_losses(logits[:, one], rows.tokens[:, one].to(logits.device)).mean())
    again, right = (float(values.mean()) for values in second_pass(logits, rows))
    return InductionLoss(first, again, again - first, right)


@public
@ids(least=2)
def losses_by_position(
    model: AnyModel, tokens: Int[Tensor, "batch pos"], *, without: Names = (), fill: Fill = "zero"
) -> Float[Tensor, "batch next"]:
    """Loss of predicting each next token, in nats, `-log softmax(logits[t])[tokens[t + 1]]`: entry `t` is about position `t + 1`.

    **Shapes**: `[batch, pos]` to `[batch, pos - 1]`. **Error**: float32 rounding. **Source**: the usual cross-entropy.
    """
    logits = run("losses_by_position", model, tokens, without=without, fill=fill)
    return token_losses(logits, tokens.to(logits.device))


@public
@ids(least=2)
@must(lambda early, late, width, tokens: width <= early < (tokens.shape[1] - 1 if late is None else late) < tokens.shape[1]
     or f"1 <= width <= early < late <= {tokens.shape[1] - 1}, the predicted tokens of a row. Use longer rows or smaller numbers")
def in_context_score(
    model: AnyModel,
    tokens: Int[Tensor, "batch pos"],
    *,
    early: Count = 50,
    late: Count | None = None,
    width: Count = 1,
    without: Names = (),
) -> float:
    """Loss late in a row minus loss early in it, averaged over rows: negative when context helps.

    `early` and `late` count predicted tokens, the first is 1; `late` defaults to the last. `width` averages over that many
    tokens ending there, which lowers the noise. **Error**: sampling error, large on few rows. **Source**: "In-context
    Learning and Induction Heads", 500th minus 50th token of rows of 512.
    """
    late = tokens.shape[1] - 1 if late is None else late
    losses = losses_by_position(model, tokens, without=without).mean(0)
    return float(losses[late - width : late].mean() - losses[early - width : early].mean())
