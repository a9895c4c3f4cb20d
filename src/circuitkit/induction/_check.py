"""The token that opens a row."""

from typing import Any


def begin_token(model: Any) -> int | None:
    """The token that opens a row: the tokenizer's beginning-of-sequence token, or `None` without a tokenizer."""
    begin = getattr(getattr(model, "tokenizer", None), "bos_token_id", None)
    return None if begin is None else int(begin)
