"""Virtual heads: two heads in a row act as one head whose value matrix is the product; and which head runs before which."""

from functools import reduce

import torch
from jaxtyping import Bool
from torch import Tensor

from circuitkit._contract import one_stream, public
from circuitkit._heads import Heads
from circuitkit.anatomy import join


@public
@one_stream()
def virtual_head(earlier: Heads, later: Heads) -> Heads:
    """V-composition of every earlier with every later head, as heads named `"L0H1->L1H3"`, earlier-major order.

    $W_{OV} = W_{OV}^e W_{OV}^l$ and, with frozen patterns, $A = A^l A^e$. A product of two patterns is in general no softmax
    of anything, so `W_Q` and `W_K` are NaN, and so is a virtual head's own pattern: give `results(x, pattern=A_l @ A_e)`.
    **Shapes**: `d_head` is the smaller of the two; `b_V` carries the earlier head's value bias through the later head.
    **Error**: exact up to rounding. **Source**: "A Mathematical Framework for Transformer Circuits", virtual attention heads.

    >>> from circuitkit.circuits import random_heads
    >>> virtual_head(random_heads(1, 12, 2), random_heads(2, 12, 3, layer=1)).names
    ('L0H0->L1H0', 'L0H0->L1H1')
    """
    runs_before(earlier, later, "virtual_head", every=True)
    earlier, later = (part.to(one_dtype_of(earlier, later)).ungrouped() for part in (earlier, later))
    between = torch.einsum("ehm,lmk->elhk", earlier.W_O, later.W_V)
    value = earlier.W_V[:, None].expand(-1, len(later), -1, -1)
    output = later.W_O[None].expand(len(earlier), -1, -1, -1)
    bias = None if earlier.b_V is None else earlier.b_V[:, None].expand(-1, len(later), -1)
    if earlier.d_head <= later.d_head:
        output = between @ output
    else:
        value = value @ between
        bias = None if bias is None else (bias[:, :, None] @ between).squeeze(2)
    value, output = (W.flatten(0, 1).contiguous() for W in (value, output))
    bias = None if bias is None else bias.flatten(0, 1).contiguous()
    names = tuple(join(first, second) for first in earlier.names for second in later.names)
    never = torch.full_like(value, torch.nan)
    return Heads(names, never, never.clone(), value, output, b_V=bias, layers=later.layers * len(earlier), mask=later.mask)


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
