"""All heads of a model in one list, of attention and of neurons, none of them built before it is taken."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from circuitkit._contract import HeadName, HeadNames, public
from circuitkit._heads import Heads, stack
from circuitkit.anatomy._address import unknown
from circuitkit.anatomy._neurons import Neurons, widened
from circuitkit.anatomy._read import anatomy
from circuitkit.anatomy._sublayer import Anatomy


class MixedHeads(Sequence):
    """Attention heads and neuron-heads of one model, in the order they run in, by name or number.

    Taken from here, all read and write `d_model + 1` coordinates and their `layers` count the steps of the model, so that
    any two can be compared and composed. `"L0 MLP"` takes all neuron-heads of a layer, `"L0N3"` all of a neuron.
    **Shapes**: nothing is built before it is taken. **Source**: this book.
    """

    def __init__(self, model: Any):
        self._model = model

    @cached_property
    def anatomy(self) -> Anatomy:
        """The model as one value, read when it is first needed."""
        return anatomy(self._model)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for sub in self.anatomy.sublayers if isinstance(sub.inside, (Heads, Neurons)) for name in sub.parts)

    @property
    def d_model(self) -> int:
        return self.anatomy.d_model + 1

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Heads]:
        return (self[name] for name in self.names)

    def __repr__(self) -> str:
        counts = [sum(sub.n_parts for sub in self.anatomy.sublayers if isinstance(sub.inside, kind)) for kind in (Heads, Neurons)]
        return f"MixedHeads({counts[0]} attention heads, {counts[1]} neuron-heads, d_model={self.d_model})"

    def groups(self) -> Iterator[Heads]:
        """All of them, a sublayer at a time."""
        return (self[sub.parts] for sub in self.anatomy.sublayers)

    @public
    def __getitem__(self, key: HeadNames | slice) -> Heads:
        """Heads by name, by a list of names, by number or by slice; those of attention and of neurons do not stack."""
        if isinstance(key, slice):
            names = self.names[key]
        else:
            names = [k if isinstance(k, str) else self.names[self.index(k)] for k in ([key] if isinstance(key, (str, int)) else key)]
        parts = []
        for step, sub, rows in self.anatomy.taken(names):
            own = sub.inside.take(rows) if isinstance(sub.inside, Neurons) else widened(sub.inside[rows])
            parts.append(replace(own, layers=(step,) * len(own)))
        return stack(*parts)

    @public
    def index(self, key: HeadName) -> int:
        """Position of a head in the list, by name or number."""
        if isinstance(key, str):
            if key not in self.names:
                raise unknown("head", key, self.names)
            return self.names.index(key)
        if not -len(self) <= key < len(self):
            raise ValueError(f"head index {key} is out of range for {len(self)} heads")
        return key % len(self)
