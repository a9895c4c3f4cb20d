"""The state that a model is in: its weights and settings, the hooks on it, and whether its numbers are numbers."""

import sys
import types
from typing import Any
from weakref import WeakKeyDictionary

_SOUND: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""Models whose weights were found finite, in which state."""


def is_bridge(model: Any) -> bool:
    """Whether this is a `TransformerBridge`; transformer-lens is not imported for the question."""
    module = sys.modules.get("transformer_lens.model_bridge")
    return module is not None and isinstance(model, module.TransformerBridge)


def is_finite(array: Any) -> bool:
    """No entry is NaN or infinite: asked of the sum first, which needs no copy of the array."""
    return bool(array.sum().isfinite()) or bool(array.isfinite().all())


def state_of(model: Any) -> list[Any]:
    """What changes when weights or settings do."""
    import torch

    address = getattr(
        torch._C, "_data_address", torch.Tensor.data_ptr
    )  # `data_ptr` copies what is shared until it is written to
    weights = (*model.parameters(), *model.buffers())
    own = [(id(w), address(w), w.dtype, None if w.is_inference() else w._version) for w in weights]
    return [*own, settings(model)]


def settings(model: Any) -> tuple:
    """What a result depends on beside the weights: the classes of all modules and their numbers, such as epsilons and scales."""
    inside = getattr(model, "original_model", model).modules()
    named = (types.FunctionType, types.BuiltinFunctionType)  # an activation, for instance
    plain = lambda part: (
        v.__qualname__ if isinstance(v, named) else v
        for v in vars(part).values()
        if isinstance(v, named) or type(v) in (float, int)
    )
    return tuple((type(part).__qualname__, *plain(part)) for part in inside)


def hooked(model: Any, modules: bool = False) -> bool:
    """Whether a user put hooks on a model's points, or also on torch's `modules`; transformer-lens and transformers have some of their own."""
    if not is_bridge(model):
        return False
    hooks = [hook.user_hook for point in model.hook_dict.values() for hook in point.fwd_hooks]
    parts = [*model.modules(), *model.original_model.modules()] if modules else []
    hooks += [
        hook
        for part in parts
        if type(part).__name__ != "HookPoint"
        for hook in part._forward_hooks.values()
    ]
    return any(not str(getattr(hook, "__module__", "")).startswith("transformer") for hook in hooks)


def require_unhooked(model: Any, tool: str) -> None:
    """A `ValueError` where hooks are on a bridge that a tool would read without them."""
    if hooked(model):
        raise ValueError(
            f"{tool} got a model with hooks on it; expected none, because it takes the model apart as it is without them. Call model.reset_hooks(), or leave `with model.hooks(...)`."
        )


def require_finite(model: Any) -> None:
    """A `ValueError` that names the weights with NaN or infinite entries; a model is looked through once, and again after a change."""
    state = state_of(model)
    if _SOUND.get(model) == state:
        return
    broken = [
        name
        for name, w in model.original_model.named_parameters()
        if not w.is_meta and not is_finite(w.detach())
    ]
    if broken:
        shown = ", ".join(name.replace("._original_component", "") for name in broken[:3])
        raise ValueError(
            f"the model has NaN or infinite entries in {shown}{f' and {len(broken) - 3} more' if len(broken) > 3 else ''}; expected finite weights, because no result would mean anything. Look where they come from: a file, or a training that diverged."
        )
    _SOUND[model] = state
