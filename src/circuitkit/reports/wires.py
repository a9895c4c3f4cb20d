"""Wires into the heads that a report names, and the circuits that these wires form."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.ablation import run
from circuitkit.bridge import Model, only_permanent_hooks
from circuitkit.effects import random_controls
from circuitkit.names import Side, parse
from circuitkit.parts import head_names, norm_before, step_of
from circuitkit.reading import heads_of
from circuitkit.reports.lines import Behaviour, Line
from circuitkit.reports.logits import Unembedding
from circuitkit.reports.measures import Subject
from circuitkit.reports.rules import (
    LEAST,
    RandomRows,
    excess_weights,
    random_rows,
    upper_tail,
)
from circuitkit.rows import Rows

WIRED = (Behaviour.PREFIX_MATCHING, Behaviour.PREVIOUS_TOKEN, Behaviour.DUPLICATE_TOKEN)
"""Behaviours whose wires are tried. Many heads of large models attend to the first token at rest."""
GROUP = " + "
"""This is between the heads of a group, in the name of their wire."""
MOST_ALIKE = 16
"""Of the heads with one behaviour, so many are cut together, those that show it most."""
KEPT = 0.95
"""A head is left out of a group if the others lose this share of what all lose."""
FEW_TOKENS = ", few tokens"
"""This follows the behaviour in a line that was measured on random rows of few different tokens."""
N_CONTROLS = 8
"""So many random directions are the control of a wire."""
Stream = Float[Tensor, "row pos d_model"]
ALL, FIND, TEST = slice(None), slice(0, None, 2), slice(1, None, 2)
"""All rows; those on which groups are found; those on which they are tested."""


class Reader:
    """A head that reads a stream in which something is missing.

    `run(model, tokens, without=wire)` cuts a wire, too, with a run of the whole model for each. Here one
    head is computed again from its own weights, which is faster; `test_report.py` binds this to `run`.

    Parameters
    ----------
    unembedding : of the tokens of the rows of a run of the whole model
    weights : for each behaviour, what the attention of each pair counts `[row, dst, src]`: the sum
        is the behaviour above its control
    name : the head

    Attributes
    ----------
    whole : the behaviours that the head has while nothing is missing, above their controls
    """

    def __init__(
        self,
        unembedding: Unembedding,
        weights: dict[str, Float[Tensor, "row dst src"]],
        name: str,
    ) -> None:
        model = unembedding.done.model
        self.weights = weights
        self.unembedding = unembedding
        self.name = name
        unembedding.done.recording.require_additive()
        self.step = step_of(model, parse(name)[0])
        self.head = heads_of(model, name).to(unembedding.W.dtype)
        self.norm = norm_before(model, parse(name)[0])
        self.stream = unembedding.done.stream(name)
        self.last: tuple[Stream, Stream] | None = None
        read = self.without(torch.zeros_like(self.stream))
        self.query = self.input("Q", read)
        self.key = self.input("K", read)
        self.raised = self.most_raised(read)
        found = self.behaviours(self.query, self.key)
        self.whole = {kind: value for kind, value in found.items() if value >= LEAST[kind]}

    def without(self, missing: Stream) -> Stream:
        """Return what the head reads, behind the norm, if something is missing in the stream."""
        # the queries and the keys miss the same, one after the other
        if self.last is None or self.last[0] is not missing:
            read = self.stream - missing
            if self.norm is not None:
                with only_permanent_hooks(self.norm):
                    read = self.norm(read)
            self.last = missing, read
        return self.last[1]

    def input(self, side: Side, read: Stream) -> Float[Tensor, "row pos d_head"]:
        """Return the queries, keys or values that the head computes from what it reads."""
        # weights in half precision are used in full precision
        return self.head.side(side, read.to(self.unembedding.W))[:, 0]

    def behaviours(self, query: Tensor, key: Tensor, rows: slice = ALL) -> dict[str, float]:
        """Return each behaviour of the pattern above its control, as far as some rows count."""
        pattern = self.head.pattern_of(query, key)
        return {
            kind: float((pattern * weight[rows]).sum()) for kind, weight in self.weights.items()
        }

    def written(self, earlier: str) -> Stream:
        """Return what an earlier head leaves in the stream, minus its mean over rows and positions."""
        # `Run.part` looks at all weights of the model at each call
        part = self.unembedding.done.recording.share(parse(earlier)[0], self.step)
        return part - part.mean((0, 1))

    def most_raised(self, read: Stream) -> Int[Tensor, "row pos"]:
        """Return which token the head raises most if it attends to a position."""
        logits = self.unembedding.logits(self.name, self.input("V", read))
        return self.unembedding.ids[logits.argmax(-1)]

    def lost(self, side: Side, missing: Stream, source: Tensor) -> dict[str, float]:
        """Return which share of each behaviour is lost if one input misses something.

        Parameters
        ----------
        side : the input
        missing : what is taken out of the stream
        source : the tokens to which the earlier head attends `[row, pos]`, -1 where this is the
            position itself. For values, the behaviour is that the head raises these tokens most, as
            a share of all positions
        """
        if side == "V":
            before = share_equal(self.raised, source)
            after = share_equal(self.most_raised(self.without(missing)), source)
            return {Behaviour.COPYING: float(before - after)}
        return self.pattern_lost(side, missing)

    def pattern_lost(self, side: Side, missing: Stream, rows: slice = ALL) -> dict[str, float]:
        """Return which share of each behaviour of the pattern is lost, on some rows."""
        read = self.without(missing)[rows]
        query, key = self.query[rows], self.key[rows]
        whole = self.behaviours(query, key, rows)
        if side == "Q":
            query = self.input("Q", read)
        else:
            key = self.input("K", read)
        left = self.behaviours(query, key, rows)
        return {kind: 1 - left[kind] / whole[kind] for kind in self.whole}

    def sides(self, source: Tensor) -> list[Side]:
        """Return the inputs at which wires are tried.

        Values are tried if the head raises most what the earlier head attends to.
        """
        sides: list[Side] = ["Q", "K"] if self.whole else []
        if float(share_equal(self.raised, source)) >= LEAST["wire"]:
            sides.append("V")
        return sides


def share_equal(some: Tensor, others: Tensor) -> Float[Tensor, ""]:
    """Return at which share of places two tensors are equal."""
    return (some == others).float().mean()


# Cuts


@torch.no_grad()
def wires(
    subject: Subject, kinds_of: dict[str, list[str]], alike: dict[str, list[str]]
) -> list[Line]:
    """Cut every wire into some heads, and compare what is lost with random directions.

    Parameters
    ----------
    subject : the model
    kinds_of : for each head that the report names, the behaviours of its pattern
    alike : for each behaviour of a pattern, the heads that show it, which are also cut together

    Returns
    -------
    A line for each wire and behaviour, with the behaviour as its text. Prefix matching is measured a
    second time, on rows of few different tokens, and `FEW_TOKENS` follows it there. A cut replaces what the earlier head writes by its mean over
    all rows and positions. The control removes a vector of the same length in a random direction
    instead; it is computed where the cut loses at least the floor.
    """
    model = subject.load()
    result = list(cut_wires(model, random_rows(model), kinds_of, alike))
    # a head may look for two tokens in a row, which shows only where single tokens come often
    matching = Behaviour.PREFIX_MATCHING
    again_of = {name: [str(matching)] for name, kinds in kinds_of.items() if matching in kinds}
    again = cut_wires(model, random_rows(model, few_tokens=True), again_of, alike)
    return result + [replace(line, text=line.text + FEW_TOKENS) for line in again]


def cut_wires(
    model: Model, rows: RandomRows, kinds_of: dict[str, list[str]], alike: dict[str, list[str]]
) -> Iterator[Line]:
    """Cut the wires into some heads on these rows, one by one and in groups of heads that are alike."""
    done = run(model, Rows.of(rows.tokens))
    unembedding = Unembedding.of(done, rows.tokens.unique())
    weights: dict[str, Tensor] = {kind: excess_weights(rows, kind) for kind in WIRED}
    generator = torch.Generator().manual_seed(0)
    for name, kinds in kinds_of.items():
        reader = Reader(unembedding, {kind: weights[kind] for kind in kinds}, name)
        alone = []
        before = heads_before(model, name)
        for earlier in before:
            source = attended_elsewhere(rows.tokens, done.pattern(earlier))
            sides = reader.sides(source)
            written = reader.written(earlier)
            for side in sides:
                wire = f"{earlier}->{name}.{side}"
                alone += cut_wire(reader, wire, side, written, source, generator)
        yield from alone
        for heads in alike.values():
            group = [head for head in heads if head in before][:MOST_ALIKE]
            for side in ("Q", "K"):
                if len(group) > 1 and reader.whole:
                    yield from cut_group(reader, group, side, alone, generator)


def cut_wire(
    reader: Reader,
    wire: str,
    side: Side,
    written: Stream,
    source: Tensor,
    generator: torch.Generator,
) -> Iterator[Line]:
    """Cut one wire, and take out random directions if this loses at least the floor."""
    by_cut = reader.lost(side, written, source)
    controls = []
    if max(by_cut.values()) >= LEAST["wire"]:
        for _ in range(N_CONTROLS):
            direction = turned(written, generator)
            controls.append(reader.lost(side, direction, source))
    for kind, lost in by_cut.items():
        null = torch.tensor([control[kind] for control in controls])
        yield wire_line(wire, kind, lost, null)


def attended_elsewhere(
    tokens: Int[Tensor, "row pos"], pattern: Float[Tensor, "row dst src"]
) -> Int[Tensor, "row pos"]:
    """Return the token to which each position attends most, or -1 if this is the position itself."""
    place = pattern.argmax(-1)
    is_own = place == torch.arange(tokens.shape[1], device=place.device)
    return tokens.gather(1, place).masked_fill(is_own, -1)


def cut_group(
    reader: Reader, heads: list[str], side: Side, alone: list[Line], generator: torch.Generator
) -> Iterator[Line]:
    """Cut the wires from several heads into one input together, and test the smallest group of them.

    On one half of the rows, heads are left out as long as the others lose as much, those that show
    the behaviour least first. On the other half, what the group loses is compared with random
    directions, with as many random heads of the same layers, and with what those of its wires lose
    in all that lose at least the floor on their own.
    """
    written = {head: reader.written(head) for head in heads}
    for kind in reader.whole:
        group = smallest_group(reader, written, side, kind)
        if len(group) == 1:
            continue  # this wire has a line of its own
        total = sum_of(written, group)
        lost = reader.pattern_lost(side, total, TEST)[kind]
        null = []
        if lost >= LEAST["group wire"]:
            missing = [turned(total, generator) for _ in range(N_CONTROLS)]
            for others in random_controls(reader.unembedding.done.model, group, N_CONTROLS, 0):
                missing.append(sum_of({head: reader.written(head) for head in others}, others))
            null = [reader.pattern_lost(side, some, TEST)[kind] for some in missing]
        names = {f"{head}->{reader.name}.{side}" for head in group}
        of_single_wires = sum(
            line.value
            for line in alone
            if line.name in names and line.text == kind and line.value >= LEAST["wire"]
        )
        group.sort(key=head_names(reader.unembedding.done.model).index)
        name = f"{GROUP.join(group)}->{reader.name}.{side}"
        yield wire_line(name, kind, lost, torch.tensor(null), "group wire", of_single_wires)


def smallest_group(reader: Reader, written: dict[str, Stream], side: Side, kind: str) -> list[str]:
    """Return the heads without which a cut of all of them would lose less."""

    def lost(heads: list[str]) -> float:
        return reader.pattern_lost(side, sum_of(written, heads), FIND)[kind]

    group = list(written)
    least = max(KEPT * lost(group), LEAST["group wire"])
    for head in reversed(list(written)):
        rest = [other for other in group if other != head]
        if rest and lost(rest) >= least:
            group = rest
    return group


def sum_of(written: dict[str, Stream], heads: list[str]) -> Stream:
    """Return what some heads write together."""
    return torch.stack([written[head] for head in heads]).sum(0)


def heads_before(model: Model, name: str) -> list[str]:
    """Return the heads of earlier layers."""
    step = step_of(model, parse(name)[0])
    return [head for head in head_names(model) if step_of(model, parse(head)[0]) < step]


def turned(vectors: Stream, generator: torch.Generator) -> Stream:
    """Turn vectors in a random direction, all in the same way: coordinates change place and sign."""
    n = vectors.shape[-1]
    signs = 2.0 * torch.randint(2, (n,), generator=generator) - 1
    order = torch.randperm(n, generator=generator)
    return vectors[..., order] * signs


def wire_line(
    wire: str,
    kind: str,
    lost: float,
    null: Float[Tensor, " control"],
    measure: str = "wire",
    explained: float = 0.0,
) -> Line:
    """Return the line of a wire or a group; its p-value is 1 if it loses less than the floor.

    The control is what random directions or heads lose, or what is `explained` otherwise, if it is more.
    """
    if not len(null):
        return Line(wire, measure, lost, p=1.0, text=kind)
    control = null.mean().clamp_min(explained) if explained else null.mean()
    p = upper_tail(lost - control - LEAST[measure], null.std())
    return Line(wire, measure, lost, control=float(control), p=float(p), text=kind)


# Circuits


def circuits(scores: list[Line], wire_lines: list[Line]) -> list[Line]:
    """Join the wires that a report names into circuits.

    Induction is a head that matches prefixes and copies, with all wires into its queries and keys.
    A virtual head is a wire into values, through which the later head copies what the earlier one
    has attended to.
    """
    copying = {score.name for score in scores if score.measure == "copying" and score.named}
    wires_of: dict[tuple[str, str], list[Line]] = {}
    for wire in wire_lines:
        if not wire.named:
            continue
        reader = parse(wire.name.split("->")[-1])[-1]
        if reader.side == "V":
            wires_of["virtual head", wire.name] = [wire]
        elif wire.text.startswith(Behaviour.PREFIX_MATCHING) and str(reader.part) in copying:
            wires_of.setdefault(("induction", str(reader.part)), []).append(wire)
    return [circuit_line(kind, group) for (kind, _), group in wires_of.items()]


def circuit_line(kind: str, group: list[Line]) -> Line:
    """Return the line of a circuit, with the value and the p-value of its weakest wires."""
    names = ", ".join(dict.fromkeys(wire.name for wire in group))
    value = min(wire.value for wire in group)
    p = max(wire.p for wire in group)
    return Line(names, kind, value, p=p, named=True)
