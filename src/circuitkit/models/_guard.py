"""Clear errors for token input that a shipped model cannot take."""

from typing import Any

import torch


def guard_input(model: Any, name: str) -> None:
    """Make `model` refuse rows longer than its context and token ids outside its vocabulary, in words."""
    n_ctx, d_vocab = model.cfg.n_ctx, model.cfg.d_vocab

    def check(_module: Any, args: tuple, kwargs: dict) -> None:
        given = args[0] if args else kwargs.get("input")
        if isinstance(given, (str, list)):
            given = model.to_tokens(given)
        if not isinstance(given, torch.Tensor) or given.is_floating_point():
            return
        if given.shape[-1] > n_ctx:
            raise ValueError(
                f"the input has {given.shape[-1]} tokens, but {name!r} reads at most {n_ctx} (n_ctx), counting the "
                f"{'<|endoftext|>'!r} it begins with. Cut it: model.to_tokens(text)[:, :{n_ctx}]."
            )
        if given.numel() and not (0 <= int(given.min()) and int(given.max()) < d_vocab):
            raise ValueError(
                f"token ids run from {int(given.min())} to {int(given.max())}, but {name!r} has ids 0 to {d_vocab - 1}. "
                "Make tokens with model.to_tokens(text); ids of another tokenizer do not fit."
            )

    model.register_forward_pre_hook(check, with_kwargs=True)
