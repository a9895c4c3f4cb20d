"""What a set of names means when all of them are ablated or cut at once.

The rules. Each name replaces one thing, by what the replacement of the run gives:

* a part, `"L0H1"`: what it writes, for all that read it;
* an input, `"L1H3.K"`: the whole stream that this input reads;
* a wire, `"L0H1->L1H3.K"`: the share of L0H1 in the stream that this input reads;
* a path, `"embed->L0H1->L1H3.K"`: its first part's share in the stream that its second part reads.
  What follows from it is passed on along the path, and nowhere else.

All names of a set hold at once. In each value, what the paths pass on is put in first, then what
wires replace, then what the input replaces, and a part is replaced after all that it reads. A later
replacement hides an earlier one where it acts: everywhere, or, with `at`, at these positions alone.

So if values are replaced at all positions, an input covers every wire and path into it, a wire
every path that ends in it, and a part all that runs through it. A name that is covered adds nothing.
With `at`, all names replace at the same positions, so an input still covers the wires into it, and a
part the wires and paths that begin with it. But behind the first head that it enters, a wire or a
path can change later positions, too, and there nothing covers it: neither a wire or an input that
the path passes, nor a part into which they lead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from circuitkit.bridge import Model
from circuitkit.names import Name, join, parse
from circuitkit.parts import neuron_names, neurons_in, parts_of, require_part, step_of
from circuitkit.reading import converted_neurons

Chain = tuple[Name, ...]
"""What leads to an input: one part for a wire, several for a path. The parts of a path after its
first are named with the input that it runs through."""
WHOLE_INPUT: Chain = ()
"""The chain that stands for all that an input reads."""
Chains = tuple[Chain, ...]
"""What one input misses."""
ChainsBySide = tuple[Chains, ...]
"""What each input of a part misses: the queries, keys and values of a head, in this order; the
queries and values of neurons; or the one input of an MLP."""


@dataclass(frozen=True)
class Cuts:
    """A set of names, resolved: the parts that are ablated, and what each input misses."""

    parts: frozenset[Name]
    inputs: dict[Name, Chains]

    @cached_property
    def readers(self) -> list[Name]:
        """The parts whose inputs miss something."""
        return list(dict.fromkeys(an_input.part for an_input in self.inputs))


def resolve(model: Model, names: Sequence[str], *, everywhere: bool = True) -> Cuts:
    """Combine names, and replace each by the smallest names that it stands for.

    Parameters
    ----------
    model : a `TransformerBridge`
    names : parts, inputs, wires and paths
    everywhere : whether values are replaced at all positions; if not, fewer names are covered, by
        the rules above

    Raises
    ------
    ValueError : for a name that the model does not have, or that no signal can follow
    """
    chains = [parse(name) for name in names]
    # layers whose neurons are named: there, the whole MLP means all of its neurons
    split: set[int | None] = set()
    for text, chain in zip(names, chains, strict=True):
        require_chain(model, text, chain)
        split.update(name.layer for name in chain if name.kind in ("N", "MLP bias"))
    require_one_level(model, chains)
    parts: set[Name] = set()
    chains_into: dict[Name, dict[Chain, None]] = {}
    for chain in chains:
        for *before, last in smallest_chains(model, chain, split):
            if before or is_input(last):
                chains_into.setdefault(last, {})[tuple(before)] = None
            else:
                require_removable(model, last)
                parts.add(last)
    inputs = {}
    for an_input, missing in chains_into.items():
        left = [
            chain for chain in missing if not parts_cover(parts, (*chain, an_input), everywhere)
        ]
        if left:
            inputs[an_input] = tuple(left)
    return Cuts(frozenset(parts), inputs)


def smallest_chains(model: Model, chain: Chain, split: set[int | None]) -> Iterator[Chain]:
    """The parts, inputs, wires or paths that a name stands for."""
    first, *readers = chain
    if is_input(first):
        begin = inputs_of(model, first, split)
    else:
        begin = smallest_parts(model, first, split)
    return product(begin, *[inputs_of(model, reader, split) for reader in readers])


def is_input(name: Name) -> bool:
    """Whether a name that stands alone is that of an input, and not of a part."""
    return name.side is not None or name.kind == "unembed"


def parts_cover(parts: set[Name], chain: Chain, everywhere: bool) -> bool:
    """Whether the replacement of these parts hides all that a chain into an input changes."""
    if everywhere:
        return any(name.part in parts for name in chain)
    return len(chain) > 1 and chain[0] in parts


def covers(name: Chain, other: Chain) -> bool:
    """Whether a name covers another one if values are replaced at all positions."""
    is_part = len(name) == 1 and name[0].side is None
    runs_through = is_part and name[0] in (piece.part for piece in other)
    return name != other and (runs_through or other[-len(name) :] == name)


KINDS_TO_KEEP = ("H", "MLP", "N")
"""Heads, MLPs and neurons: a model has several, and one may be all that is left of its kind."""


def all_but(model: Model, kept: Sequence[str]) -> list[str]:
    """The names of everything else of the kind that these names have.

    Parts are of one kind with all heads, all MLPs or all neurons of the model. A wire is of one kind
    with all wires that parts of the writer's kind send into any input of the same reader.

    Parameters
    ----------
    model : a `TransformerBridge`
    kept : heads, MLPs or neurons; or wires from one of these kinds

    Raises
    ------
    ValueError : for names of several kinds, of another kind, or no names, and for names that the
        model does not have

    Examples
    --------
    >>> import circuitkit as ck
    >>> all_but(ck.load_model("one-layer"), ["L0H1"])
    ['L0H0', 'L0H2', 'L0H3']
    """
    chains = [parse(name) for name in kept]
    require_one_kind(model, kept, chains)
    writers = parts_of_kind(model, chains[0][0].kind)
    if len(chains[0]) == 1:
        everything: list[Chain] = [(part,) for part in writers]
    else:
        everything = []
        for reader in dict.fromkeys(chain[1].part for chain in chains):
            inputs = inputs_of(model, reader, set())
            earlier = [part for part in writers if step_of(model, part) < step_of(model, reader)]
            everything.extend(product(earlier, inputs))
    stays = {small for chain in chains for small in smallest_chains(model, chain, set())}
    return [join(*chain) for chain in dict.fromkeys(everything) if chain not in stays]


def require_one_kind(model: Model, kept: Sequence[str], chains: Sequence[Chain]) -> None:
    """Raise a `ValueError` if it is not clear what else is of the kind of these names."""
    if not chains:
        raise ValueError(
            "keep is empty, so it does not say of what kind the parts are that are replaced. Name at "
            "least one, such as keep='L0H1'. To replace all heads, write "
            "without=ck.heads_of(model).names."
        )
    kinds: dict[tuple, str] = {}
    for text, chain in zip(kept, chains, strict=True):
        require_chain(model, text, chain)
        writer, *readers = chain
        if len(readers) > 1 or writer.side is not None or writer.kind not in KINDS_TO_KEEP:
            raise ValueError(
                "keep takes heads, MLPs and neurons, and wires that one of these writes, such as "
                f"'L0H1' or 'L0H1->L1H3.K', not {text!r}. Name what is replaced in without=."
            )
        kinds[writer.kind, len(chain)] = text
    if len(kinds) > 1:
        first, second = list(kinds.values())[:2]
        raise ValueError(
            f"keep has names of different kinds, such as {first!r} and {second!r}. Give names of one "
            "kind, and name what else is replaced in without=."
        )


def parts_of_kind(model: Model, kind: str) -> list[Name]:
    """All heads, all MLPs or all neurons of a model, in order; of converted neurons, their heads."""
    if kind == "N":
        layers = range(len(model.blocks))
        return [neuron for layer in layers for neuron in neurons_in(model, layer)]
    return [part for part in parts_of(model, neurons=False) if part.kind == kind]


def require_chain(model: Model, text: str, chain: Chain) -> None:
    """Raise a `ValueError` if no signal runs along these parts."""
    for name in chain:
        require_part(model, name)
        sides = sides_of(model, name.part)
        if name.side is not None and name.side not in sides:
            has = ", ".join(sides) or "one input, without a letter"
            raise ValueError(
                f"{text!r} names an input that {name.part} does not have. It has {has}."
            )
    steps = [step_of(model, name) for name in chain]
    runs_forward = all(early < late for early, late in zip(steps, steps[1:], strict=False))
    reads_nothing = any(name.kind in ("bias", "MLP bias") for name in chain[1:])
    begins_with_input = len(chain) > 1 and chain[0].side is not None
    if not runs_forward or reads_nothing or begins_with_input:
        raise ValueError(
            f"{text!r} is no wire or path: each part must run before the next one, because a part "
            "reads only what earlier layers wrote, and the first is a part, not an input. "
            "Write a wire such as 'L0H1->L1H3.K'."
        )


def require_one_level(model: Model, chains: Sequence[Chain]) -> None:
    """Raise a `ValueError` if an MLP that is not converted is named together with its neurons."""
    named = {name.part for chain in chains for name in chain}
    for neuron in sorted((name for name in named if name.kind == "N"), key=str):
        mlp = Name("MLP", neuron.layer)
        if mlp in named and converted_neurons(model, neuron.layer) is None:
            raise ValueError(
                f"'{mlp}' contains {neuron}, so both cannot be named at once. Name the MLP alone or "
                "neurons alone, or convert the model first: to_attention_only(model)."
            )


def require_removable(model: Model, part: Name) -> None:
    """Raise a `ValueError` for a bias that no hook can take away for everything that reads it."""
    is_converted = converted_neurons(model, part.layer) is not None
    if part.kind == "embed bias" or (part.kind == "MLP bias" and not is_converted):
        raise ValueError(
            f"{str(part)!r} is the bias of a norm behind the sum of other parts, so it cannot be "
            f"ablated. Cut its wires instead, such as '{part}->unembed'."
        )


def sides_of(model: Model, part: Name) -> str:
    """The inputs of a part: of a head, of a converted neuron (its keys read the bias token)."""
    if part.kind == "H":
        return "QKV"
    is_in_mlp = part.kind in ("N", "MLP")
    return "QV" if is_in_mlp and converted_neurons(model, part.layer) is not None else ""


def smallest_parts(model: Model, name: Name, split: set[int | None]) -> list[Name]:
    """`[L3N5.0, L3N5.1]` for the neuron L3N5, and the name itself for most other parts."""
    part, layer = name.part, name.layer
    neurons = converted_neurons(model, layer)
    if layer is None or neurons is None:
        return [replace(part, term=None)]
    if name.kind == "N" and len(neurons.terms) == 1:
        return [replace(part, term=None)]
    if name.kind == "N" and name.term is None:
        return neuron_names(layer, [name.number], len(neurons.terms))
    if name.kind == "MLP" and layer in split:
        bias = [] if neurons.b_out is None else [Name("MLP bias", layer)]
        return neurons_in(model, layer) + bias
    return [part]


def inputs_of(model: Model, name: Name, split: set[int | None]) -> list[Name]:
    """`[L1H3.Q, L1H3.K, L1H3.V]` for L1H3, and of a neuron those of its heads."""
    sides = [name.side] if name.side else list(sides_of(model, name)) or [None]
    readers = [part for part in smallest_parts(model, name, split) if part.kind != "MLP bias"]
    return [replace(part, side=side) for part in readers for side in sides]
