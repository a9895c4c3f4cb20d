"""A copy of a bridge that shares its weights until either of the two writes to them."""

import copy
import types
import weakref
from typing import Any

import torch
from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def copy_bridge(bridge: Any) -> Any:
    """A bridge that computes the same, whose hooks are its own, and whose weights are copied on the first write.

    `copy.deepcopy` alone refuses activations kept from a forward pass, doubles the weights, and leaves inner hooks pointing
    at the original's modules. The original is only read.
    """
    memo: dict[int, Any] = {}
    modules = all_modules(bridge)
    for module in modules:
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in memo:
                shared = nn.Parameter(_lazy(parameter.detach()), requires_grad=parameter.requires_grad)
                memo[id(parameter)] = shared
        for buffer in module._buffers.values():
            if buffer is not None:
                memo.setdefault(id(buffer), _lazy(buffer.detach()))
    for module in modules:  # tensors kept outside the registers, after all parameters are known: some are parameters
        for value in vars(module).values():
            if isinstance(value, Tensor) and id(value) not in memo:
                memo[id(value)] = _lazy(value.detach())
    tokenizer = getattr(bridge, "tokenizer", None)
    if tokenizer is not None:
        memo[id(tokenizer)] = tokenizer
    twin = copy.deepcopy(bridge, memo)
    for module in all_modules(twin):
        for kind in _HOOKS:
            hooks = module.__dict__.get(kind) or {}
            for key, hook in list(hooks.items()):
                hooks[key] = _moved(hook, memo)
    return twin


def all_modules(bridge: Any) -> list[nn.Module]:
    """Every module of a bridge, once: its own and those of the model it wraps."""
    found = {id(module): module for module in bridge.modules()}
    found |= {id(module): module for module in bridge.original_model.modules()}
    return list(found.values())


def _lazy(tensor: Tensor) -> Tensor:
    """A copy-on-write clone where torch has them, a plain one elsewhere."""
    lazy = getattr(torch, "_lazy_clone", None)
    if lazy is None or tensor.device.type not in ("cpu", "cuda"):
        return tensor.clone()
    try:
        return lazy(tensor)
    except RuntimeError:  # memory torch does not own, such as a memory-mapped checkpoint
        return tensor.clone()


def _moved(value: Any, memo: dict[int, Any]) -> Any:
    """`value`, or what took its place in the copy; functions get closures over the copy's modules."""
    if isinstance(value, weakref.ProxyTypes):
        target = memo.get(id(value.__repr__.__self__))
        return value if target is None else weakref.proxy(target)
    if isinstance(value, types.MethodType):
        owner = memo.get(id(value.__self__))
        return value if owner is None else types.MethodType(value.__func__, owner)
    if isinstance(value, types.FunctionType) and value.__closure__:
        cells = [cell.cell_contents for cell in value.__closure__]
        moved = [_moved(content, memo) for content in cells]
        if all(new is old for new, old in zip(moved, cells, strict=True)):
            return value
        closure = tuple(types.CellType(content) for content in moved)
        twin = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, closure)
        twin.__kwdefaults__ = value.__kwdefaults__
        twin.__dict__.update(value.__dict__)
        return twin
    return memo.get(id(value), value) if isinstance(value, nn.Module) else value
