"""The final residual stream as an exact sum of what each component wrote."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, ids, public
from circuitkit.anatomy._address import spelled, unknown
from circuitkit.anatomy._engine import run_of


class Decomposition(NamedTuple):
    """What each component added to the residual stream.

    `logits = norm(sum of parts) W_U + b_U`. **Source**: see `decompose`.
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

    `x_final = embed + pos + sum_h z_h W_O^h + sum_l b_O^l + sum_l mlp^l`. A norm on what a block writes (Gemma 2), or on
    the whole stream (BERT), is frozen at its value in this run, and parts are what is left behind it. An MLP that became
    heads is one part; single ones are `anatomy(model).run(tokens).part("L0N3")`.

    **Error**: exact up to rounding. **Source**: "A Mathematical Framework for Transformer Circuits", section on the residual
    stream as a sum; transformer-lens's `ActivationCache.decompose_resid` and `stack_head_results` are the same sum.
    """
    run = run_of(model, tokens)
    groups = list(run.parts())
    names = tuple(name for some, _ in groups for name in some)
    scale = None if run.final is None else run.final.scale
    return Decomposition(names, torch.cat([parts for _, parts in groups]), run.logits, scale)
