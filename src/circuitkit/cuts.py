"""What a set of names means when all of them are ablated or cut at once.

The names are parsed into `Cuts`: the parts that are ablated, and what each input misses. An input
covers every wire and path into it, a wire covers every path that ends in it, and a part covers all
that it writes. A name that another name covers adds nothing, so nothing is subtracted twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from circuitkit.names import Name, parse
from circuitkit.parts import converted_neurons, neuron_names, require_part, step_of

Reading = frozenset | None
"""What one input misses: `(part, None)` if it misses the part, `(part, inputs)` if it reads what the
part would write with these inputs cut. `None` in place of the set: the whole input is replaced."""
Inputs = frozenset
"""Pairs `(input, reading)`."""
NOTHING = frozenset()


@dataclass(frozen=True)
class Cuts:
    """A set of names, resolved: the parts that are ablated, and what each input misses."""

    parts: frozenset[Name]
    inputs: Inputs

    def reading(self, name: Name) -> Reading:
        """What an input misses."""
        return dict(self.inputs).get(name, NOTHING)


def resolve(model: Any, names: Sequence[str]) -> Cuts:
    """Combine names: an input covers its wires, a wire its paths, a part all that it writes.

    Parameters
    ----------
    model : a `TransformerBridge`
    names : parts, inputs, wires and paths

    Raises
    ------
    ValueError : for a name that the model does not have, or that no signal can follow
    """
    chains = [parse(name) for name in names]
    for text, chain in zip(names, chains, strict=True):
        require_chain(model, text, chain)
    grammar = Expansion(model, split_layers(model, chains))
    parts: set[Name] = set()
    tree: dict[Name, dict | None] = {}
    for chain in chains:
        if len(chain) == 1 and chain[0].side is None and chain[0].kind != "unembed":
            require_removable(model, chain[0])
            parts.update(grammar.parts(chain[0]))
        else:
            grammar.add(tree, list(chain))
    return Cuts(frozenset(parts), pruned(tree, parts))


def require_chain(model: Any, text: str, chain: Sequence[Name]) -> None:
    """Raise a `ValueError` if no signal runs along these parts."""
    for name in chain:
        require_part(model, name)
    steps = [step_of(model, name) for name in chain]
    runs_forward = all(early < late for early, late in zip(steps, steps[1:], strict=False))
    ends_well = len(chain) == 1 or (chain[-1].kind not in ("bias", "MLP bias"))
    if not runs_forward or not ends_well or (len(chain) > 1 and chain[0].side is not None):
        raise ValueError(
            f"{text!r} is no wire or path: each part must run before the next one, because a part "
            "reads only what earlier layers wrote, and the first is a part, not an input. "
            "Write a wire such as 'L0H1->L1H3.K'."
        )
    for name in chain:
        if name.side is not None and name.side not in sides_of(model, name.part):
            has = ", ".join(sides_of(model, name.part)) or "one input, without a letter"
            raise ValueError(
                f"{text!r} names an input that {name.part} does not have. It has {has}."
            )


def require_removable(model: Any, part: Name) -> None:
    """Raise a `ValueError` for a bias that no hook can take away for everything that reads it."""
    is_converted = converted_neurons(model, part.layer) is not None
    if part.kind == "embed bias" or (part.kind == "MLP bias" and not is_converted):
        raise ValueError(
            f"{str(part)!r} is the bias of a norm behind the sum of other parts, so it cannot be "
            f"ablated. Cut its wires instead, such as '{part}->unembed'."
        )


def sides_of(model: Any, part: Name) -> str:
    """The inputs of a part: of a head, of a converted neuron (its keys read the bias token)."""
    if part.kind == "H":
        return "QKV"
    is_neuron = part.kind == "N" or (part.kind == "MLP" and converted_neurons(model, part.layer))
    return "QV" if is_neuron else ""


def split_layers(model: Any, chains: Sequence[Sequence[Name]]) -> set[int]:
    """Layers whose neurons are named: there, the whole MLP means all of its neurons."""
    layers = set()
    for chain in chains:
        for name in chain:
            is_converted = converted_neurons(model, name.layer) is not None
            if name.layer is not None and name.kind in ("N", "MLP bias") and is_converted:
                layers.add(name.layer)
    return layers


@dataclass(frozen=True)
class Expansion:
    """Replaces names by the smallest names that they stand for, so that equal things are equal."""

    model: Any
    split: set[int]

    def parts(self, name: Name) -> list[Name]:
        """`[L3N5.0, L3N5.1]` for the neuron L3N5, and the name itself for most others."""
        if name.layer is None:
            return [name]
        neurons = converted_neurons(self.model, name.layer)
        if name.kind == "N" and name.term is None:
            return neuron_names(name.layer, [name.number], len(neurons.terms))
        if name.kind == "N" and len(neurons.terms) == 1:
            return [replace(name, term=None)]
        if name.kind == "MLP" and name.layer in self.split:
            bias = [] if neurons.b_out is None else [Name("MLP bias", name.layer)]
            numbers = range(neurons.W_in.shape[1])
            return neuron_names(name.layer, numbers, len(neurons.terms)) + bias
        return [name]

    def inputs(self, name: Name) -> list[Name]:
        """`[L1H3.Q, L1H3.K, L1H3.V]` for L1H3."""
        sides = sides_of(self.model, name.part)
        found = []
        for part in self.parts(name.part):
            if part.kind == "MLP bias":
                continue
            for side in [name.side] if name.side or not sides else sides:
                found.append(replace(part, side=side))
        return found

    def add(self, tree: dict[Name, dict | None], chain: list[Name]) -> None:
        """Note in a tree what an input, a wire or a path takes away."""
        *before, last = chain
        for entry in self.inputs(last):
            if not before:
                tree[entry] = None  # the whole input, which covers every wire into it
                continue
            missing = tree.setdefault(entry, {})
            if missing is None:
                continue
            for writer in self.parts(before[-1].part):
                if len(before) == 1:
                    missing[writer] = None  # a wire, which covers every path that ends in it
                    continue
                alternative = missing.setdefault(writer, {})
                if alternative is not None:
                    begin = replace(writer, side=before[-1].side)
                    self.add(alternative, [*before[:-1], begin])


def pruned(tree: dict[Name, dict | None], parts: set[Name]) -> Inputs:
    """The tree as a value, without what the ablation of whole parts does already."""
    inputs = set()
    for entry, missing in tree.items():
        if entry.part in parts:
            continue
        if missing is None:
            inputs.add((entry, None))
            continue
        reading = set()
        for writer, alternative in missing.items():
            if writer in parts:
                continue
            nested = None if alternative is None else pruned(alternative, parts)
            if nested is None or nested:
                reading.add((writer, nested))
        if reading:
            inputs.add((entry, frozenset(reading)))
    return frozenset(inputs)


def merged(one: Reading, other: Reading) -> Reading:
    """What an input misses if it misses both."""
    if one is None or other is None:
        return None
    result = dict(one)
    for writer, inputs in other:
        if writer not in result:
            result[writer] = inputs
        elif result[writer] is None or inputs is None:
            result[writer] = None
        else:
            readings = dict(result[writer])
            for entry, reading in inputs:
                readings[entry] = merged(readings.get(entry, NOTHING), reading)
            result[writer] = frozenset(readings.items())
    return frozenset(result.items())


def alternatives(cuts: Cuts, inputs: Inputs) -> Iterator[tuple[Name, Inputs]]:
    """Every part that must be computed with other inputs, also for the inputs of such a part."""
    for _, reading in inputs:
        for writer, nested in reading or ():
            if nested is not None:
                # on the way to this part, the cuts that hold for everyone hold as well
                together = [(entry, merged(cuts.reading(entry), other)) for entry, other in nested]
                yield from alternatives(cuts, frozenset(together))
                yield writer, nested
