"""The final residual stream as an exact sum of what each component wrote; and how much of that a later one deletes."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Natural, ids, must, public
from circuitkit.anatomy import anatomy
from circuitkit.anatomy._address import spelled, unknown
from circuitkit.anatomy._engine import run_of


class Decomposition(NamedTuple):
    """What each component added to the residual stream: `logits = norm(sum of parts) W_U + b_U`. **Source**: see `decompose`.
    """

    names: tuple[str, ...]
    """`"embed"`, `"pos"`, then in order of depth `"L0H0"`, ..., `"L0 bias"` (b_O) and `"L0 MLP"`."""
    parts: Float[Tensor, "component batch pos d_model"]
    """One summand per name, in the order of `names`."""
    logits: Float[Tensor, "batch pos d_vocab"]
    """The model's logits in the same run."""
    norm_scale: Float[Tensor, "batch pos 1"] | None
    """The divisor of the final norm at each position, or `None` for a model without one."""

    @property
    def total(self) -> Float[Tensor, "batch pos d_model"]:
        """The final residual stream, the sum of all parts."""
        return self.parts.sum(0)

    def __getitem__(self, key: Any) -> Any:
        """A part by its name; by number, the named tuple's own field."""
        if isinstance(key, slice) or key in range(-4, 4) and key is not True and key is not False:
            return tuple.__getitem__(self, key)
        name = spelled(key) if isinstance(key, str) else key
        if name not in self.names:
            raise unknown("component", str(key), self.names)
        return self.parts[self.names.index(name)]


@public
@ids()
def decompose(model: AnyModel, tokens: Int[Tensor, "batch pos"]) -> Decomposition:
    """Split the final residual stream into embedding, position, every head, every MLP and the output biases.

    `x_final = embed + pos + sum_h z_h W_O^h + sum_l b_O^l + sum_l mlp^l`. A norm behind a layer (Gemma 2) or on the whole
    stream (BERT) is frozen, and parts are what is left behind it. An MLP that became heads is one part; single ones are
    `anatomy(model).run(tokens).part("L0N3")`. **Error**: exact up to rounding. **Source**: "A Mathematical Framework for
    Transformer Circuits", the residual stream as a sum; so are transformer-lens's `decompose_resid` and `stack_head_results`.
    """
    run = run_of(model, tokens)
    groups = list(run.parts())
    names = tuple(name for some, _ in groups for name in some)
    scale = None if run.final is None else run.final.scale
    return Decomposition(names, torch.cat([parts for _, parts in groups]), run.logits, scale)


class MemoryScores(NamedTuple):
    """Deletion and mutual direction of what components write, summed over positions. **Source**: see `memory_scores`."""

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

    Component b deletes of a: `-<r_b, r_a> / <r_a, r_a>`, products summed over batch and positions, of which the first `skip`
    are left out (attention rests there, and it is large). Of what writes nothing there is nothing to delete (NaN). Heads of
    one layer write at once, so none is later than the other; b_O counts with its heads, and so does an MLP that runs beside
    them. **Error**: float32 rounding. **Source**: "A Mathematical Framework for Transformer Circuits", on heads and neurons
    that clear what others wrote; the number is this book's.
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
