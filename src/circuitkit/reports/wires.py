"""Wires into the heads that a report names, and the circuits that these wires form."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.ablation import run
from circuitkit.bridge import Model, only_permanent_hooks
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
FEW_TOKENS = ", few tokens"
"""This follows the behaviour in a line that was measured on random rows of few different tokens."""
N_CONTROLS = 8
"""So many random directions are the control of a wire."""
Stream = Float[Tensor, "row pos d_model"]


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
        self.head = heads_of(model, name).to(unembedding.W.dtype)
        self.norm = norm_before(model, parse(name)[0])
        self.stream = unembedding.done.stream(name)
        self.query = self.input("Q", self.stream)
        self.key = self.input("K", self.stream)
        self.raised = self.most_raised(self.stream)
        found = self.behaviours(self.query, self.key)
        self.whole = {kind: value for kind, value in found.items() if value >= LEAST[kind]}

    def input(self, side: Side, stream: Stream) -> Float[Tensor, "row pos d_head"]:
        """Return the queries, keys or values that the head computes from a stream."""
        if self.norm is not None:
            with only_permanent_hooks(self.norm):
                stream = self.norm(stream)
        # weights in half precision are used in full precision
        return self.head.side(side, stream.to(self.unembedding.W))[:, 0]

    def behaviours(self, query: Tensor, key: Tensor) -> dict[str, float]:
        """Return each behaviour of the pattern above its control."""
        pattern = self.head.pattern_of(query, key)
        return {kind: float((pattern * weight).sum()) for kind, weight in self.weights.items()}

    def most_raised(self, stream: Stream) -> Int[Tensor, "row pos"]:
        """Return which token the head raises most if it attends to a position."""
        logits = self.unembedding.logits(self.name, self.input("V", stream))
        return self.unembedding.ids[logits.argmax(-1)]

    def lost(self, side: Side, missing: Stream, source: Tensor) -> dict[str, float]:
        """Return which share of each behaviour is lost if one input misses something.

        Parameters
        ----------
        side : the input
        missing : what is taken out of the stream
        source : the tokens to which the earlier head attends `[row, pos]`. For values, the
            behaviour is that the head raises these tokens most, as a share of all positions
        """
        stream = self.stream - missing
        if side == "V":
            before = share_equal(self.raised, source)
            after = share_equal(self.most_raised(stream), source)
            return {Behaviour.COPYING: float(before - after)}
        query = self.input("Q", stream) if side == "Q" else self.query
        key = self.input("K", stream) if side == "K" else self.key
        left = self.behaviours(query, key)
        return {kind: 1 - left[kind] / whole for kind, whole in self.whole.items()}

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
def wires(subject: Subject, kinds_of: dict[str, list[str]]) -> list[Line]:
    """Cut every wire into some heads, and compare what is lost with random directions.

    Parameters
    ----------
    subject : the model
    kinds_of : for each head that the report names, the behaviours of its pattern

    Returns
    -------
    A line for each wire and behaviour, with the behaviour as its text. Prefix matching is measured a
    second time, on rows of few different tokens, and `FEW_TOKENS` follows it there. A cut replaces what the earlier head writes by its mean over
    all rows and positions. The control removes a vector of the same length in a random direction
    instead; it is computed where the cut loses at least the floor.
    """
    model = subject.load()
    result = list(cut_wires(model, random_rows(model), kinds_of))
    # a head may look for two tokens in a row, which shows only where single tokens come often
    matching = Behaviour.PREFIX_MATCHING
    again_of = {name: [str(matching)] for name, kinds in kinds_of.items() if matching in kinds}
    again = cut_wires(model, random_rows(model, few_tokens=True), again_of)
    return result + [replace(line, text=line.text + FEW_TOKENS) for line in again]


def cut_wires(model: Model, rows: RandomRows, kinds_of: dict[str, list[str]]) -> Iterator[Line]:
    """Cut the wires into some heads on these rows."""
    done = run(model, Rows.of(rows.tokens))
    unembedding = Unembedding.of(done, rows.tokens.unique())
    weights: dict[str, Tensor] = {kind: excess_weights(rows, kind) for kind in WIRED}
    generator = torch.Generator().manual_seed(0)
    for name, kinds in kinds_of.items():
        reader = Reader(unembedding, {kind: weights[kind] for kind in kinds}, name)
        for earlier in heads_before(model, name):
            written = done.part(earlier, before=name)
            written = written - written.mean((0, 1))
            source = rows.tokens.gather(1, done.pattern(earlier).argmax(-1))
            for side in reader.sides(source):
                wire = f"{earlier}->{name}.{side}"
                yield from cut_wire(reader, wire, side, written, source, generator)


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


def wire_line(wire: str, kind: str, lost: float, null: Float[Tensor, " control"]) -> Line:
    """Return the line of a wire; its p-value is 1 if it loses less than the floor."""
    if not len(null):
        return Line(wire, "wire", lost, p=1.0, text=kind)
    control = null.mean()
    p = upper_tail(lost - control - LEAST["wire"], null.std())
    return Line(wire, "wire", lost, control=float(control), p=float(p), text=kind)


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
        reader = parse(wire.name)[-1]
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
