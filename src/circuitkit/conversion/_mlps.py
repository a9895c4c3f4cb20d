"""Where a bridge's MLP layers keep their weights, function and norm; and a copy that shares weights until one is written to."""

import copy
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from circuitkit.conversion._head_sum import FUNCTIONS

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
                shared = nn.Parameter(
                    _lazy(parameter.detach()), requires_grad=parameter.requires_grad
                )
                memo[id(parameter)] = shared
        for buffer in module._buffers.values():
            if buffer is not None:
                memo.setdefault(id(buffer), _lazy(buffer.detach()))
    for module in (
        modules
    ):  # tensors kept outside the registers, after all parameters are known: some are parameters
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
        twin = types.FunctionType(
            value.__code__, value.__globals__, value.__name__, value.__defaults__, closure
        )
        twin.__kwdefaults__ = value.__kwdefaults__
        twin.__dict__.update(value.__dict__)
        return twin
    return memo.get(id(value), value) if isinstance(value, nn.Module) else value


_ATTRIBUTES = (
    "act",
    "act_fn",
    "activation_fn",
    "intermediate_act_fn",
    "activation",
    "nonlinearity",
    "act_func",
)


@dataclass(frozen=True, eq=False)
class FoundMLP:
    """One MLP layer of a bridge."""

    layer: int
    block: Any
    owner: nn.Module
    """The module that applies the activation, as its attribute `attribute`."""
    attribute: str
    activation: str
    """The name of the function, found by what it computes."""
    gated: bool

    @property
    def weights(self) -> dict[str, Tensor]:
        """`W_in`, `W_out` (and `W_gate`), transformer-lens orientation, as the model holds them."""
        names = ("W_in", "W_out", "W_gate") if self.gated else ("W_in", "W_out")
        return {name: getattr(self.block.mlp, name) for name in names}

    @property
    def biases(self) -> dict[str, Tensor | None]:
        """`b_in`, `b_out` (and `b_gate`); None where the checkpoint has none."""
        names = ("in", "out", "gate") if self.gated else ("in", "out")
        return {f"b_{name}": _bias(self.block.mlp, name) for name in names}


def _bias(mlp: Any, name: str) -> Tensor | None:
    bias = getattr(getattr(mlp, name, None), "bias", None)
    return bias if isinstance(bias, Tensor) else None


def find_mlps(bridge: Any) -> list[FoundMLP]:
    """The MLP of every block, or a `ValueError` that lists everything that cannot be converted."""
    found, problems = [], []
    for layer, block in enumerate(bridge.blocks):
        if "mlp" not in block._modules:
            continue
        try:
            found.append(_find(layer, block))
        except ValueError as problem:
            problems.append(f"block {layer}: {problem}")
    if problems:
        raise ValueError(
            "this model cannot be converted to attention only:\n  " + "\n  ".join(problems)
        )
    if not found:
        raise ValueError(
            "this model has no MLP layers: it is attention-only already, there is nothing to convert"
        )
    return found


def _find(layer: int, block: Any) -> FoundMLP:
    kind = type(block.mlp).__name__
    names = [name.lower() for name, _ in block.mlp.named_modules()]
    if "moe" in kind.lower() or any(name.split(".")[-1] in ("experts", "router") for name in names):
        why = "its router picks by a discontinuous choice, which no sum of neuron-heads follows within a bound"
        raise ValueError(
            f"{kind} is a mixture of experts: {why}; convert a dense model, or one expert with neuron_heads"
        )
    places = list(_places(block))
    if len(places) != 1:
        seen = ", ".join(f"{type(owner).__name__}.{name}" for owner, name in places) or "none"
        raise ValueError(
            f"expected one activation function in {kind}, found {seen}; give its weights to neuron_heads"
        )
    owner, attribute = places[0]
    if getattr(owner, "ln", None) is not None:
        raise ValueError(
            "a LayerNorm between activation and output mixes the neurons; they are not separate heads"
        )
    gated = getattr(block.mlp, "W_gate", None) is not None
    return FoundMLP(
        layer, block, owner, attribute, identify(getattr(owner, attribute), gated), gated
    )


def _places(block: Any) -> Iterator[tuple[nn.Module, str]]:
    attention = getattr(block, "attn", None)
    skip = (
        {id(module) for module in attention.modules()}
        if isinstance(attention, nn.Module)
        else set()
    )
    seen = set()
    for module in block.mlp.original_component.modules():
        if id(module) in skip or id(module) in seen:
            continue
        seen.add(id(module))
        for name in _ATTRIBUTES:
            value = module.__dict__.get(name, module._modules.get(name))
            if callable(value) and not isinstance(value, (nn.Linear, type)):
                if isinstance(value, nn.Module):
                    seen |= {
                        id(inner) for inner in value.modules()
                    }  # it may hold the same function once more
                yield module, name


def identify(function: Callable[[Tensor], Tensor], gated: bool = False) -> str:
    """The name of an activation function, by its values on a grid."""
    x = torch.linspace(-9, 9, 181, dtype=torch.float64)
    with torch.no_grad():
        values = function(x.clone())
    known = FUNCTIONS | ({"sigmoid": torch.sigmoid} if gated else {})
    for name, reference in known.items():
        if values.shape == x.shape and (values - reference(x)).abs().max() < 1e-6:
            return name
    name = getattr(function, "__name__", type(function).__name__)
    raise ValueError(f"activation {name!r} is not supported; heads can compute {sorted(known)}")
