"""The run that tools take apart: of our loop, or of what the bridge does while hooks change it."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from circuitkit._heads import Heads
from circuitkit._precision import require_same
from circuitkit._state import hooked
from circuitkit.anatomy._neurons import Neurons
from circuitkit.anatomy._read import anatomy, measured
from circuitkit.anatomy._run import Run
from circuitkit.anatomy._sublayer import Sublayer

_WANTED = ("hook_z", "hook_pattern", "mlp.hook_out", "mlp.out.hook_out", "ln_final.hook_in")


def run_of(model: Any, tokens: Int[Tensor, "batch pos"], patterns: bool = True) -> Run:
    """One forward pass in parts; what hooks on a bridge do now is in it. Patterns are kept unless they are not wanted.

    **Error**: rounding; a `ValueError` where hooks change the stream itself, because then no parts add up to it.
    """
    value = anatomy(model)
    if not hooked(model):
        return value.run(tokens, watch=None if patterns else lambda *_: None)
    with torch.no_grad(), measured(model):
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith(_WANTED))
    now = value.run(tokens, edit=lambda sub, z: _in_bridge(cache, sub, z))
    now.patterns = {
        sub.name: cache[f"blocks.{sub.layer}.attn.hook_pattern"]
        for sub in value.sublayers
        if isinstance(sub.inside, Heads)
    }
    last, text = (
        now.streams[-1],
        "hooks change the stream between the parts of this model, so they do not add up to it. ",
    )
    text += "Hook what parts read or write instead"
    require_same(last, cache["ln_final.hook_in"], 1e-3 * float(last.abs().max()), text)
    return now


def _in_bridge(cache: Any, sub: Sublayer, z: Tensor) -> Tensor:
    """What a sublayer's heads gathered in the bridge, or its whole MLP wrote, in the shape that the loop gives it."""
    at = f"blocks.{sub.layer}."
    if isinstance(sub.inside, Heads):
        found = cache[f"{at}attn.hook_z"]
        return (found.unflatten(-1, (len(sub.inside), -1)) if found.ndim == 3 else found).transpose(
            1, 2
        )
    if isinstance(sub.inside, Neurons):
        return cache[f"{at}mlp.neurons.hook_z"].flatten(2)
    name = f"{at}mlp.hook_out"
    return cache[name if name in cache else f"{at}mlp.out.hook_out"].view_as(z)
