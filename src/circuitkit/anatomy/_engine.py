"""The run that tools take apart: of our loop, or of the bridge itself while hooks change what it does."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from circuitkit._contract import is_bridge
from circuitkit._heads import Heads
from circuitkit._precision import require_same
from circuitkit.anatomy._neurons import Neurons
from circuitkit.anatomy._read import anatomy
from circuitkit.anatomy._run import Run

_WANTED = ("hook_embed", "hook_pos_embed", "hook_z", "hook_pattern", "mlp.hook_out", "mlp.out.hook_out", "ln_final.hook_in")


def run_of(model: Any, tokens: Int[Tensor, "batch pos"], patterns: bool = True) -> Run:
    """One forward pass in parts; what hooks on a bridge do now is in it. Patterns are kept unless they are not wanted.

    **Error**: rounding; a `ValueError` where hooks change the stream itself, because then no parts add up to it.
    """
    value = anatomy(model)
    if not is_bridge(model) or not any(map(_is_hooked, model.hook_dict.values())):
        return value.run(tokens, watch=None if patterns else lambda sub, pattern, values: None)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith(_WANTED))
        return _from_cache(value, tokens.to(value.W_E.device), cache)


def _is_hooked(point: Any) -> bool:
    """Whether a user put a hook there: transformer-lens has hooks of its own, which join points of two names."""
    return any(not str(hook.user_hook.__module__).startswith("transformer_lens") for hook in point.fwd_hooks)


def _from_cache(value: Any, tokens: Tensor, cache: Any) -> Run:
    now = Run(value, tokens, {"embed": cache["hook_embed"]})
    if "pos" in value.starts:
        now.starts["pos"] = cache["hook_pos_embed"].expand_as(cache["hook_embed"])
    x: Any = sum(now.starts.values())
    for number, step in enumerate(value.steps):
        now.streams.append(x)
        for sub in step.sublayers:
            now.norms[sub.name] = (None if sub.before is None else sub.before.freeze(x), None)
            at = f"blocks.{sub.layer}."
            if isinstance(sub.inside, Heads):
                z = cache[f"{at}attn.hook_z"]
                z = z.unflatten(-1, (len(sub.inside), -1)) if z.ndim == 3 else z
                now.gathered[sub.name] = z.transpose(1, 2)
                now.patterns[sub.name] = cache[f"{at}attn.hook_pattern"]
            elif isinstance(sub.inside, Neurons):
                now.gathered[sub.name] = cache[f"{at}mlp.neurons.hook_z"].flatten(2)
            else:
                name = f"{at}mlp.hook_out"
                now.gathered[sub.name] = cache[name if name in cache else f"{at}mlp.out.hook_out"].view_as(x)
        if step.closing is not None or any(sub.after for sub in step.sublayers):
            raise ValueError("hooks are followed in models whose norms stand before their layers; this one norms what is written")
        written = (names for at, _, names in value.groups(number + 1, neurons=False) if at == number)
        x = x + sum(now.part(name, number) for names in written for name in names)
    now.streams.append(x)
    text = "hooks change the stream between the parts of this model, so they do not add up to it. Hook what parts read or write instead"
    require_same(x, cache["ln_final.hook_in"], 1e-3 * float(x.abs().max()), text)
    return now
