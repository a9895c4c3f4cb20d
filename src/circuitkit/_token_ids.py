"""Token ids as every function takes them, and the words in which anything else is refused."""

from typing import Any

import torch
from torch import Tensor


def need_tensor(what: str, tokens: Any) -> Tensor:
    """`tokens` if it is a tensor, or a `ValueError` that says how to make one."""
    if isinstance(tokens, Tensor):
        return tokens
    raise ValueError(
        f"{what} got tokens as a {type(tokens).__name__}; expected a torch tensor of token ids [batch, pos], because "
        "they are compared position by position. Write torch.tensor([ids]) for a list, model.to_tokens(text) for text."
    )


def need_ids(what: str, model: Any, tokens: Any) -> Tensor:
    """Token ids `[..., pos]` that this model can read, or a `ValueError` that lists everything wrong."""
    need_tensor(what, tokens)
    cfg, wrong = getattr(model, "cfg", model), []  # a bridge, or what has n_ctx and d_vocab itself
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        wrong.append("they must be integers; write tokens.long() if they are ids")
    elif tokens.numel() and not (int(tokens.min()) >= 0 and int(tokens.max()) < cfg.d_vocab):
        wrong.append(f"ids must lie in 0..{cfg.d_vocab - 1}, the model's vocabulary; use its own tokenizer")
    if tokens.ndim and tokens.shape[-1] > cfg.n_ctx:
        wrong.append(f"rows must have at most {cfg.n_ctx} positions, the model's context; cut them")
    if wrong:
        raise ValueError(f"{what} got tokens of shape {tuple(tokens.shape)}, {tokens.dtype}: {'; '.join(wrong)}.")
    return tokens
