"""All attention heads of a model as one `Heads`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from circuitkit._contract import HasHeads, public
from circuitkit._heads import Heads, stack
from circuitkit.anatomy._read import anatomy

if TYPE_CHECKING:
    Own = Heads
else:
    Own = Any  # what the model carries itself


@public
def heads(model: HasHeads) -> Own:
    """All attention heads of a model as one `Heads`, named `L{layer}H{head}`, in the order of the layers.

    Weights are the ones the model holds now (after folding, if it was folded); they are copies, detached. Grouped-query
    models give one entry per query head, keys and values repeated; views are `circuitkit.anatomy(model)["L0H1"]`. A model
    whose blocks are preceded by a norm gives heads that read the *normalised* stream. An object with its own `.heads`
    gives those: a converted model its attention heads and neuron-heads together, built as they are taken
    (`MixedHeads`). What layers score by in different ways (windows, rotations) is left out, and `positions` is "other".
    **Error**: none, weights are copied. **Source**: the model's own `W_Q, W_K, W_V, W_O`, transformer-lens axis order.
    """
    if getattr(model, "heads", None) is not None:
        return model.heads
    layers = [sub.inside.ungrouped() for sub in anatomy(model).sublayers if isinstance(sub.inside, Heads)]
    if not layers:
        empty = torch.zeros(0, model.cfg.d_model, model.cfg.d_head)
        return Heads((), empty, empty, empty, empty.transpose(1, 2))
    ways = [(part.turn, part.window, part.cap, part.norm_Q is None, part.norm_K is None) for part in layers]
    if any(way != ways[0] for way in ways) or any(part.norm_Q is not None and part.norm_Q.across for part in layers):
        unknown = {"turn": None, "window": None, "cap": None, "norm_Q": None, "norm_K": None}
        layers = [replace(part, positions="other", **unknown) for part in layers]
    return stack(*layers).to(layers[0].W_Q.dtype, copy=len(layers) == 1)
