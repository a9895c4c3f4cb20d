"""Clear errors for input that a shipped model cannot take: text or rows too long, token ids of another vocabulary."""

from functools import partial
from typing import Any

import torch


def guard_input(model: Any, name: str) -> None:
    """Make `model` refuse, in words, what does not fit it; nothing is cut silently.

    transformer-lens cuts long text at the context unless told otherwise. Here `model.to_tokens(text)` and
    `model(text)` raise instead; `model.to_tokens(text, truncate=True)` still cuts. The check of token ids sits on the
    wrapped model, since `run_with_cache` and its like do not go through the bridge's own call.
    """
    model.__dict__["to_tokens"] = partial(_to_tokens, model, name)
    model.original_model.register_forward_pre_hook(partial(_check_call, name), with_kwargs=True)


def _to_tokens(model: Any, name: str, input: Any, *args: Any, truncate: bool = False, **kwargs: Any) -> torch.Tensor:
    tokens = type(model).to_tokens(model, input, *args, truncate=truncate, **kwargs)
    _check_length(tokens, name, model.cfg.n_ctx)
    return tokens


def _check_call(name: str, model: Any, args: tuple, kwargs: dict) -> None:
    given = args[0] if args else kwargs.get("input_ids")
    if not isinstance(given, torch.Tensor) or given.is_floating_point():
        return
    _check_length(given, name, model.cfg.n_ctx)
    d_vocab = model.cfg.d_vocab
    if given.numel() and (int(given.min()) < 0 or int(given.max()) >= d_vocab):
        raise ValueError(
            f"token ids run from {int(given.min())} to {int(given.max())}, but {name!r} has ids 0 to {d_vocab - 1}. "
            "Make tokens with model.to_tokens(text); ids of another tokenizer do not fit."
        )


def _check_length(tokens: torch.Tensor, name: str, n_ctx: int) -> None:
    if tokens.shape[-1] > n_ctx:
        raise ValueError(
            f"the input has {tokens.shape[-1]} tokens, but {name!r} reads at most {n_ctx} (n_ctx), counting the "
            f"'<|endoftext|>' it begins with. Cut it: model.to_tokens(text, truncate=True), or tokens[:, :{n_ctx}]."
        )
