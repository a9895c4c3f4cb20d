"""All heads of a model: of attention as one `Heads`; with those of neurons as a list, none built before it is taken."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from circuitkit._contract import HasHeads, HeadName, HeadNames, place_of, public
from circuitkit._heads import Heads, stack
from circuitkit.anatomy._address import unknown
from circuitkit.anatomy._neurons import Neurons, widened
from circuitkit.anatomy._read import anatomy
from circuitkit.anatomy._sublayer import Anatomy

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix

    Own = Heads
else:
    Own = Any  # what the model carries itself


@public
def heads(model: HasHeads) -> Own:
    """All attention heads of a model as one `Heads`, named `L{layer}H{head}`, in the order of the layers.

    Weights are detached copies of what the model holds now; `circuitkit.anatomy(model)["L0H1"]` gives views. Grouped queries: one
    entry per query head, keys and values repeated. Behind a norm heads read the *normalised* stream. An object with its own
    `.heads` gives those: a converted model a `MixedHeads`. What layers score by in different ways (windows, rotations) is left out,
    and `positions` is "other". **Error**: none. **Source**: the model's own `W_Q, W_K, W_V, W_O`, transformer-lens axis order.
    """
    if getattr(model, "heads", None) is not None:
        return model.heads
    layers = [
        sub.inside.ungrouped() for sub in anatomy(model).sublayers if isinstance(sub.inside, Heads)
    ]
    if not layers:
        empty = torch.zeros(0, model.cfg.d_model, model.cfg.d_head)
        return Heads((), empty, empty, empty, empty.transpose(1, 2))
    ways = [
        (part.turn, part.window, part.cap, part.norm_Q is None, part.norm_K is None)
        for part in layers
    ]
    if any(way != ways[0] for way in ways) or any(
        part.norm_Q is not None and part.norm_Q.across for part in layers
    ):
        unknown = {"turn": None, "window": None, "cap": None, "norm_Q": None, "norm_K": None}
        layers = [replace(part, positions="other", **unknown) for part in layers]
    return stack(*layers).to(layers[0].W_Q.dtype, copy=len(layers) == 1)


class MixedHeads:
    """Attention heads and neuron-heads of one model, in the order they run in, by name or number.

    Taken from here, all read and write `d_model + 1` coordinates and their `layers` count steps, so that any two can be composed.
    `"L0 MLP"` takes a layer's neuron-heads, `"L0N3"` a neuron's. Nothing is built before it is taken. **Source**: this book.
    """

    def __init__(self, model: Any):
        self._model = model

    @cached_property
    def anatomy(self) -> Anatomy:
        """The model as one value, read when it is first needed."""
        return anatomy(self._model)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(
            name
            for sub in self.anatomy.sublayers
            if isinstance(sub.inside, (Heads, Neurons))
            for name in sub.parts
        )

    @property
    def d_model(self) -> int:
        return self.anatomy.d_model + 1

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Heads]:
        return (self[name] for name in self.names)

    def __repr__(self) -> str:
        counts = [
            sum(sub.n_parts for sub in self.anatomy.sublayers if isinstance(sub.inside, kind))
            for kind in (Heads, Neurons)
        ]
        return f"MixedHeads({counts[0]} attention heads, {counts[1]} neuron-heads, d_model={self.d_model})"

    def groups(self) -> Iterator[Heads]:
        """All of them, a sublayer at a time."""
        return (self[sub.parts] for sub in self.anatomy.sublayers)

    @public
    def __getitem__(self, key: HeadNames | slice) -> Heads:
        """Heads by name, by a list of names, by number or by slice. Both kinds together have weights, and no patterns."""
        if isinstance(key, slice):
            names = self.names[key]
        else:
            names = [
                k if isinstance(k, str) else self.names[self.index(k)]
                for k in ([key] if isinstance(key, (str, int)) else key)
            ]
        parts = []
        for step, sub, rows in self.anatomy.taken(names):
            own = (
                sub.inside.take(rows)
                if isinstance(sub.inside, Neurons)
                else widened(sub.inside[rows])
            )
            parts.append(replace(own, layers=(step,) * len(own)))
        alike = len({(part.d_head, part.scale, part.mask) for part in parts}) < 2
        return stack(*(parts if alike else _weights_alone(parts)))

    @property
    def QK(self) -> "FactoredMatrix":
        """As `Heads.QK`, of all heads: built now, all of them as wide inside as the widest."""
        return self[:].QK

    @property
    def OV(self) -> "FactoredMatrix":
        """As `Heads.OV`, of all heads."""
        return self[:].OV

    @public
    def index(self, key: HeadName) -> int:
        """Position of a head in the list, by name or number."""
        if isinstance(key, str) and key not in self.names:
            raise unknown("head", key, self.names)
        return place_of(key, self.names)


def _weights_alone(parts: list[Heads]) -> list[Heads]:
    """Heads of several kinds, all as wide inside as the widest; what they do to scores differs, so there are none."""
    most = max(part.d_head for part in parts)
    plain: dict[str, Any] = {"scale": 1.0, "mask": "causal", "positions": "other"}
    plain |= dict.fromkeys(("turn", "norm_Q", "norm_K", "cap", "window"))
    out = []
    for part in parts:
        room = (0, most - part.d_head)
        held = {name: getattr(part, name) for name in ("W_Q", "W_K", "W_V", "b_Q", "b_K", "b_V")}
        wide: dict[str, Any] = {
            name: pad(value, room) for name, value in held.items() if value is not None
        }
        out.append(replace(part, **wide, W_O=pad(part.W_O, (0, 0, *room)), **plain))
    return out
