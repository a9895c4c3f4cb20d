"""Which head runs before which."""

from functools import reduce

import torch
from jaxtyping import Bool
from torch import Tensor

from circuitkit._heads import Heads


def one_dtype_of(earlier: Heads, later: Heads, *least: torch.dtype) -> torch.dtype:
    """The finer of both stacks' dtypes, or `least` if that is finer."""
    return reduce(torch.promote_types, (later.W_Q.dtype, *least), earlier.W_Q.dtype)


def runs_before(earlier: Heads, later: Heads, what: str, *, every: bool = False) -> Bool[Tensor, "earlier later"]:
    """True where a head of `earlier` lies in a lower layer; a `ValueError` if no pair (or not every pair) does."""
    early = torch.tensor(earlier.layers, device=earlier.W_Q.device)
    late = torch.tensor(later.layers, device=earlier.W_Q.device)
    before = early[:, None] < late[None, :]
    if before.all() if every else before.any():
        return before
    raise ValueError(
        f"{what} got earlier heads {_named(earlier)} and later heads {_named(later)}; expected {'every' if every else 'at least one'} "
        "earlier head in a lower layer, because a head reads only what earlier layers wrote. Swap the two arguments, choose other "
        "heads, or set the layers of hand-built heads with dataclasses.replace(heads, layers=(1,) * len(heads))."
    )


def _named(heads: Heads) -> str:
    shown = [f"{name} (layer {layer})" for name, layer in zip(heads.names, heads.layers, strict=True)]
    return ", ".join(shown[:4]) + (f", ... ({len(shown)} in all)" if len(shown) > 4 else "")
