"""All heads of a model: of attention as one `Heads`; with those of neurons as a list, none built before it is taken."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch.nn.functional import pad

from circuitkit._contract import HeadName, HeadNames, place_of, public
from circuitkit._heads import Heads, stack
from circuitkit.anatomy._address import unknown
from circuitkit.anatomy._neurons import Neurons, widened
from circuitkit.anatomy._read import anatomy
from circuitkit.anatomy._sublayer import Anatomy

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix


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
                else widened(sub.inside[list(rows)])
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
