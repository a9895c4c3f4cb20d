"""Which orders of paths carry the loss: the term-importance analysis of the framework paper."""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Names, ids, must, public
from circuitkit.circuits._paths import BIAS, PathLogits, path_logits


class TermImportance(NamedTuple):
    """Losses in nats per token, patterns frozen: what is worth how much is `removed[k] - full` for each order `k`.

    **Source**: see `term_importance`.
    """

    full: float
    """The model's own loss."""
    kept: tuple[float, ...]
    """`kept[k]`: only paths through at most `k` heads; the last is `full`."""
    removed: tuple[float, ...]
    """`removed[k]`: all paths but those through exactly `k` heads."""
    by_path: dict[str, float]
    """How much the loss rises when one path alone is removed, largest first (negative: the path hurts here)."""
    tokens: int
    """Predictions averaged over."""


@public
@ids(least=2)
def term_importance(model: AnyModel, tokens: Int[Tensor, "batch pos"], *, by_path: bool = True) -> TermImportance:
    """Loss when terms of order 0, 1, 2, ... are kept or removed, and when each single path is removed.

    Order counts the heads a path passes; MLP outputs count as starts; biases are always kept. Patterns are those of the full
    model, so this asks what the terms *write*, not where heads look. Losses of two orders do not add up. **Error**: as
    `path_logits`. **Source**: "A Mathematical Framework for Transformer Circuits", "Term importance analysis".
    """
    paths = path_logits(model, tokens)
    orders = {name: paths.order(name) for name in paths if name != BIAS}
    always = [BIAS] if BIAS in paths else []
    longest = max(orders.values())

    def loss(wanted) -> float:
        return next_token_loss(paths.sum([name for name in orders if wanted(name)] + always), tokens)

    every, full = paths.sum(), loss(lambda name: True)
    alone = {gone: next_token_loss(every - paths[gone], tokens) - full for gone in orders} if by_path else {}
    return TermImportance(
        full=full,
        kept=tuple(loss(lambda name, k=k: orders[name] <= k) for k in range(longest + 1)),
        removed=tuple(loss(lambda name, k=k: orders[name] != k) for k in range(longest + 1)),
        by_path=dict(sorted(alone.items(), key=lambda item: -item[1])),
        tokens=tokens.shape[0] * (tokens.shape[1] - 1),
    )


def next_token_loss(logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]) -> float:
    """Mean cross-entropy of predicting each next token, in nats."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()


@public
@must(lambda tokens, paths: tokens.shape == paths._run.tokens.shape and 0 <= tokens.min() <= tokens.max() < paths._run.model.d_vocab
     or "the tokens that the paths were made on, because the loss is of predicting them")
def loss_of_paths(paths: PathLogits, tokens: Int[Tensor, "batch pos"], names: Names | None = None) -> float:
    """Next-token loss of the sum of some paths (all by default), `mean(-log softmax(sum)[next token])`, in nats.

    **Error**: float32 rounding. **Source**: "A Mathematical Framework for Transformer Circuits", term importance.
    """
    return next_token_loss(paths.sum(names), tokens)
