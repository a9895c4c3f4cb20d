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
from circuitkit.parts import head_names, heads_before, norm_before, step_of
from circuitkit.reading import heads_of
from circuitkit.reports.lines import Behaviour, Line
from circuitkit.reports.logits import AT_FIRST, Unembedding
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
        done, (head,) = unembedding.done, parse(name)
        done.recording.require_additive()
        self.unembedding = unembedding
        self.weights = weights
        self.name = name
        self.step = step_of(done.model, head)
        self.head = heads_of(done.model, name).to(unembedding.W.dtype)
        self.norm = norm_before(done.model, head)
        self.stream = done.stream(name)
        read = self.without(torch.zeros_like(self.stream))
        self.inputs = {"Q": self.input("Q", read), "K": self.input("K", read)}
        self.raised = self.most_raised(read)
        found = self.behaviours(self.inputs, ALL)
        self.whole = {kind: value for kind, value in found.items() if value >= LEAST[kind]}

    def without(self, missing: Stream) -> Stream:
        """Return what the head reads, behind the norm, if something is missing in the stream."""
        if self.norm is None:
            return self.stream - missing
        with only_permanent_hooks(self.norm):
            return self.norm(self.stream - missing)

    def input(self, side: Side, read: Stream) -> Float[Tensor, "row pos d_head"]:
        """Return the queries, keys or values that the head computes from what it reads."""
        # weights in half precision are used in full precision
        return self.head.side(side, read.to(self.unembedding.W))[:, 0]

    def behaviours(self, inputs: dict[str, Tensor], rows: slice) -> dict[str, float]:
        """Return each behaviour of the pattern on some rows above its control, as far as these count."""
        pattern = self.head.pattern_of(inputs["Q"], inputs["K"])
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

    def lost(self, side: Side, read: Stream, source: Tensor) -> dict[str, float]:
        """Return which share of each behaviour is lost if one input reads something else.

        Parameters
        ----------
        side : the input
        read : what it reads, see `without`
        source : the tokens to which the earlier head attends `[row, pos]`, -1 where this is the
            position itself. For values, the behaviour is that the head raises these tokens most, as
            a share of all positions
        """
        if side == "V":
            before = share_equal(self.raised, source)
            after = share_equal(self.most_raised(read), source)
            return {Behaviour.COPYING: float(before - after)}
        return self.pattern_lost(side, read, ALL)

    def pattern_lost(self, side: Side, read: Stream, rows: slice) -> dict[str, float]:
        """Return which share of each behaviour of the pattern is lost, on some rows."""
        inputs = {kind: values[rows] for kind, values in self.inputs.items()}
        whole = self.behaviours(inputs, rows)
        inputs[side] = self.input(side, read[rows])
        left = self.behaviours(inputs, rows)
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
    with model.hooks(fwd_hooks=[AT_FIRST]):
        done = run(model, Rows.of(rows.tokens))
    unembedding = Unembedding.of(done, rows.tokens.unique())
    weights: dict[str, Tensor] = {kind: excess_weights(rows, kind) for kind in WIRED}
    generator = torch.Generator().manual_seed(0)
    for name, kinds in kinds_of.items():
        reader = Reader(unembedding, {kind: weights[kind] for kind in kinds}, name)
        before = heads_before(model, parse(name)[0])
        alone = []
        for earlier in before:
            source = attended_elsewhere(rows.tokens, done.pattern(earlier))
            alone += cut_wires_from(reader, earlier, source, generator)
        yield from alone
        for heads in alike.values():
            group = [head for head in heads if head in before][:MOST_ALIKE]
            if len(group) > 1 and reader.whole:
                yield from cut_group(reader, group, "Q", alone, generator)
                yield from cut_group(reader, group, "K", alone, generator)


def cut_wires_from(
    reader: Reader, earlier: str, source: Tensor, generator: torch.Generator
) -> Iterator[Line]:
    """Cut each wire from an earlier head, and take out random directions if it loses at least the floor."""
    written = reader.written(earlier)
    read = reader.without(written)
    for side in reader.sides(source):
        by_cut = reader.lost(side, read, source)
        controls = []
        if max(by_cut.values()) >= LEAST["wire"]:
            for _ in range(N_CONTROLS):
                without_direction = reader.without(turned(written, generator))
                controls.append(reader.lost(side, without_direction, source))
        for kind, lost in by_cut.items():
            null = torch.tensor([control[kind] for control in controls])
            yield wire_line(f"{earlier}->{reader.name}.{side}", kind, lost, null)


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
    model = reader.unembedding.done.model
    written = {head: reader.written(head) for head in heads}

    def lost(kind: str, missing: Stream, rows: slice) -> float:
        return reader.pattern_lost(side, reader.without(missing), rows)[kind]

    for kind in reader.whole:
        group = list(written)
        least = max(KEPT * lost(kind, sum_of(written, group), FIND), LEAST["group wire"])
        for head in reversed(heads):
            rest = [other for other in group if other != head]
            if rest and lost(kind, sum_of(written, rest), FIND) >= least:
                group = rest
        if len(group) == 1:
            continue  # this wire has a line of its own
        total = sum_of(written, group)
        by_cut = lost(kind, total, TEST)
        null = []
        if by_cut >= LEAST["group wire"]:
            missing = [turned(total, generator) for _ in range(N_CONTROLS)]
            for others in random_controls(model, group, N_CONTROLS, 0):
                missing.append(sum_of({head: reader.written(head) for head in others}, others))
            null = [lost(kind, some, TEST) for some in missing]
        names = {f"{head}->{reader.name}.{side}" for head in group}
        of_single_wires = sum(
            line.value
            for line in alone
            if line.name in names and line.text == kind and line.value >= LEAST["wire"]
        )
        group.sort(key=head_names(model).index)
        name = f"{GROUP.join(group)}->{reader.name}.{side}"
        yield wire_line(name, kind, by_cut, torch.tensor(null), "group wire", of_single_wires)


def sum_of(written: dict[str, Stream], heads: list[str]) -> Stream:
    """Return what some heads write together."""
    return torch.stack([written[head] for head in heads]).sum(0)


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
    result = []
    for (kind, _), group in wires_of.items():
        names = ", ".join(dict.fromkeys(wire.name for wire in group))
        # the value and the p-value of a circuit are those of its weakest wires
        value, p = min(wire.value for wire in group), max(wire.p for wire in group)
        result.append(Line(names, kind, value, p=p, named=True))
    return result
