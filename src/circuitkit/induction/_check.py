"""The questions every public function here asks of its arguments, and the words it refuses with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from circuitkit._heads import require_bridge
from circuitkit._token_ids import need_tensor


def need_count(what: str, name: str, value: Any, least: int = 1) -> int:
    """An integer of at least `least`, or a `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"{what} got {name}={value!r}; expected an integer of at least {least}, because it counts something. "
            f"Write for example {name}={max(least, 8)}."
        )
    return value


def need_positions(what: str, wanted: int, n_ctx: int, advice: str) -> None:
    """Refuse a row that is longer than the context."""
    if wanted > n_ctx:
        raise ValueError(
            f"{what} needs rows of {wanted} positions; expected at most {n_ctx}, because the model's context ends "
            f"there. {advice}"
        )


def need_tokens(what: str, model: Any, tokens: Tensor) -> Tensor:
    """Token ids `[batch, pos]` that this bridge can read, or a `ValueError` that lists everything wrong."""
    bridge, wrong = require_bridge(model, what), []
    need_tensor(what, tokens)
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        wrong.append("they must be integers with the two axes [batch, pos]; one row is tokens[None]")
    else:
        if not 2 <= tokens.shape[1] <= bridge.cfg.n_ctx:
            wrong.append(f"rows must have 2 to {bridge.cfg.n_ctx} positions, the model's context; cut them")
        if tokens.numel() and not (int(tokens.min()) >= 0 and int(tokens.max()) < bridge.cfg.d_vocab):
            wrong.append(f"ids must lie in 0..{bridge.cfg.d_vocab - 1}, the model's vocabulary; use its own tokenizer")
        if not tokens.shape[0]:
            wrong.append("there must be at least one row, or there is nothing to average")
    if wrong:
        raise ValueError(f"{what} got tokens of shape {tuple(tokens.shape)}, {tokens.dtype}: " + "; ".join(wrong) + ".")
    return tokens


def need_choice(what: str, name: str, value: Any, choices: Sequence[str]) -> str:
    """One of the given words, or a `ValueError` that lists them."""
    if value not in choices:
        raise ValueError(
            f"{what} got {name}={value!r}; expected one of {list(choices)}, because nothing else is defined. "
            f"Write {name}={choices[0]!r}."
        )
    return value


def begin_token(model: Any) -> int | None:
    """The token that opens a row: the tokenizer's beginning-of-sequence token, or `None` without a tokenizer."""
    begin = getattr(getattr(model, "tokenizer", None), "bos_token_id", None)
    return None if begin is None else int(begin)
