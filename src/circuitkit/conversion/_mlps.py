"""Where a bridge's MLP layers keep their weights, their activation function and their norm."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from circuitkit.conversion._head_sum import FUNCTIONS

_ATTRIBUTES = ("act", "act_fn", "activation_fn", "intermediate_act_fn", "activation", "nonlinearity", "act_func")


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
        raise ValueError("this model cannot be converted to attention only:\n  " + "\n  ".join(problems))
    if not found:
        raise ValueError("this model has no MLP layers: it is attention-only already, there is nothing to convert")
    return found


def _find(layer: int, block: Any) -> FoundMLP:
    kind = type(block.mlp).__name__
    names = [name.lower() for name, _ in block.mlp.named_modules()]
    if "moe" in kind.lower() or any(name.split(".")[-1] in ("experts", "router") for name in names):
        why = "its router picks by a discontinuous choice, which no sum of neuron-heads follows within a bound"
        raise ValueError(f"{kind} is a mixture of experts: {why}; convert a dense model, or one expert with neuron_heads")
    places = list(_places(block))
    if len(places) != 1:
        seen = ", ".join(f"{type(owner).__name__}.{name}" for owner, name in places) or "none"
        raise ValueError(f"expected one activation function in {kind}, found {seen}; give its weights to neuron_heads")
    owner, attribute = places[0]
    if getattr(owner, "ln", None) is not None:
        raise ValueError("a LayerNorm between activation and output mixes the neurons; they are not separate heads")
    gated = getattr(block.mlp, "W_gate", None) is not None
    return FoundMLP(layer, block, owner, attribute, identify(getattr(owner, attribute), gated), gated)


def _places(block: Any) -> Iterator[tuple[nn.Module, str]]:
    attention = getattr(block, "attn", None)
    skip = {id(module) for module in attention.modules()} if isinstance(attention, nn.Module) else set()
    seen = set()
    for module in block.mlp.original_component.modules():
        if id(module) in skip or id(module) in seen:
            continue
        seen.add(id(module))
        for name in _ATTRIBUTES:
            value = module.__dict__.get(name, module._modules.get(name))
            if callable(value) and not isinstance(value, (nn.Linear, type)):
                if isinstance(value, nn.Module):
                    seen |= {id(inner) for inner in value.modules()}  # it may hold the same function once more
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
