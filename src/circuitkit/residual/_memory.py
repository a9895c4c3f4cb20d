"""The stream as a memory: how much of what one component wrote a later one deletes."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Natural, ids, must, public
from circuitkit.anatomy import anatomy
from circuitkit.residual._decompose import decompose


class MemoryScores(NamedTuple):
    """Deletion and mutual direction of what components write, over positions.

    `deletion[b, a] = -<r_b, r_a> / <r_a, r_a>` and `cosine[b, a] = <r_b, r_a> / (|r_b| |r_a|)`, summed over
    positions. **Source**: see `memory_scores`.
    """

    names: tuple[str, ...]
    """Component names as in `Decomposition`."""
    deletion: Float[Tensor, "later earlier"]
    """`-<r_later, r_earlier> / <r_earlier, r_earlier>`, summed over positions: 1 deletes everything the earlier one
    wrote, 0 leaves it, negative amplifies it. NaN where the first component is not later."""
    cosine: Float[Tensor, "later earlier"]
    """Mean cosine between the two outputs at the same position, with the same NaNs and where either writes nothing."""


@public
@ids()
@must(lambda skip, tokens: skip < tokens.shape[1] or f"fewer than the {tokens.shape[1]} positions, or longer text")
def memory_scores(model: AnyModel, tokens: Int[Tensor, "batch pos"], *, skip: Natural = 1) -> MemoryScores:
    """Which components delete from the stream what which earlier components wrote, on given tokens.

    The first `skip` positions are left out (the begin-of-text token is a resting place for attention and large).
    Measured from activations with the decomposition of `decompose`. There is nothing to delete of a component that
    writes nothing (NaN), and it deletes nothing (0). Heads of one layer write at once, so none of them is later than
    the other; b_O counts with the heads of its layer, and so does the MLP where a model runs both in parallel.

    Component b deletes of a: `-<r_b, r_a> / <r_a, r_a>`, products summed over batch and positions. **Error**:
    float32 rounding. **Source**: "A Mathematical Framework for Transformer Circuits", on heads and neurons that
    clear what others wrote; the number is this book's.
    """
    split = decompose(model, tokens)
    parts = split.parts[:, :, skip:].flatten(1, 2)
    inner = torch.einsum("apm,bpm->ab", parts, parts)
    deletion = -inner / inner.diagonal()
    unit = (parts / parts.norm(dim=-1, keepdim=True)).nan_to_num()
    cosine = torch.einsum("apm,bpm->ab", unit, unit) / parts.shape[1]
    silent = inner.diagonal() == 0
    cosine = cosine.masked_fill(silent[:, None] | silent[None, :], torch.nan)
    depth = torch.tensor([anatomy(model).find(name).step for name in split.names], device=inner.device)
    never = depth[:, None] <= depth[None, :]
    return MemoryScores(split.names, deletion.masked_fill(never, torch.nan), cosine.masked_fill(never, torch.nan))
