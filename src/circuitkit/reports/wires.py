"""Wires into the heads that a report names, and the circuits that these wires form."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.ablation import Run, only_permanent_hooks, run
from circuitkit.heads import heads_of
from circuitkit.names import Side, parse
from circuitkit.parts import head_names, norm_before, step_of
from circuitkit.reports.logits import Unembedding
from circuitkit.reports.parts import Subject, row
from circuitkit.reports.rules import (
    LEAST,
    RandomRows,
    Row,
    excess_weights,
    random_rows,
    upper_tail,
)

WIRED = ("prefix matching", "previous token", "duplicate token")
"""Behaviours whose wires are tried. Many heads of large models attend to the first token at rest."""
N_CONTROLS = 8
"""So many random directions are the control of a wire."""
Stream = Float[Tensor, "row pos d_model"]


@dataclass
class Reader:
    """A head that reads a stream in which something is missing.

    Parameters
    ----------
    done : a run of the whole model
    weights : for each behaviour, what the attention of each pair counts `[row, dst, src]`: the sum
        is the behaviour above its control
    unembedding : of the tokens of these rows
    name : the head
    """

    done: Run
    weights: dict[str, Float[Tensor, "row dst src"]]
    unembedding: Unembedding
    name: str

    def __post_init__(self) -> None:
        self.head = heads_of(self.done.model, self.name)
        self.norm = norm_before(self.done.model, parse(self.name)[0])
        self.stream = self.done.stream(self.name)
        self.query, self.key = self.input("Q", self.stream), self.input("K", self.stream)
        self.raised = self.most_raised(self.stream)
        whole = self.behaviours(self.query, self.key)
        self.whole = {kind: value for kind, value in whole.items() if value >= LEAST[kind]}

    def input(self, side: Side, stream: Stream) -> Float[Tensor, "row pos d_head"]:
        """Return the queries, keys or values that the head computes from a stream."""
        if self.norm is not None:
            with only_permanent_hooks(self.norm):
                stream = self.norm(stream)
        return self.head.side(side, stream)[:, 0]

    def behaviours(self, query: Tensor, key: Tensor) -> dict[str, float]:
        """Return each behaviour of the pattern above its control."""
        scores = query @ key.mT / self.head.scale
        if self.head.cap is not None:
            scores = self.head.cap * (scores / self.head.cap).tanh()
        allowed = self.head.allowed(scores.shape[-1], scores.device)
        pattern = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        return {kind: float((pattern * weight).sum()) for kind, weight in self.weights.items()}

    def most_raised(self, stream: Stream) -> Int[Tensor, "row pos"]:
        """Return which token the head raises most if it attends to a position."""
        logits = self.unembedding.logits(self.input("V", stream), self.head.W_O[0])
        return self.unembedding.ids[logits.argmax(-1)]

    def lost(self, side: Side, missing: Stream, source: Tensor) -> dict[str, float]:
        """Return which share of each behaviour is lost if one input misses something.

        For values, the behaviour is that the head raises most the token at the position to which
        the earlier head attends, `source`. Its share is one of all positions.
        """
        changed = self.stream - missing
        if side == "V":
            before, after = self.raised == source, self.most_raised(changed) == source
            return {"copying": float(before.float().mean() - after.float().mean())}
        changed = self.input(side, changed)
        pair = (changed, self.key) if side == "Q" else (self.query, changed)
        after = self.behaviours(*pair)
        return {kind: 1 - after[kind] / whole for kind, whole in self.whole.items()}

    def sides(self, source: Tensor) -> list[Side]:
        """Return the inputs at which wires are tried.

        Values are tried if the head raises most what the earlier head attends to.
        """
        copies = float((self.raised == source).float().mean()) >= LEAST["wire"]
        sides: list[Side] = ["Q", "K"] if self.whole else []
        return [*sides, "V"] if copies else sides


@torch.no_grad()
def wires(subject: Subject, kinds_of: dict[str, list[str]]) -> list[Row]:
    """Cut every wire into some heads, and compare what is lost with random directions.

    Parameters
    ----------
    subject : the model
    kinds_of : for each head that the report names, the behaviours of its pattern

    Returns
    -------
    A row for each wire and behaviour. A cut replaces what the earlier head writes by its mean over
    all rows and positions. The control removes a vector of the same length in a random direction
    instead; it is computed where the cut loses at least the floor.
    """
    model = subject.load()
    by_token = cut_wires(model, random_rows(model), kinds_of)
    matching = [name for name, kinds in kinds_of.items() if "prefix matching" in kinds]
    by_pair = cut_wires(
        model, random_rows(model, few_tokens=True), dict.fromkeys(matching, ["prefix matching"])
    )
    return [*by_token, *by_pair]


def cut_wires(model: Any, rows: RandomRows, kinds_of: dict[str, list[str]]) -> Iterator[Row]:
    """Cut the wires into some heads on these rows."""
    done = run(model, rows.tokens)
    unembedding = Unembedding.of(done, rows.tokens.unique())
    weights = {kind: excess_weights(rows, kind) for kind in WIRED}
    generator = torch.Generator().manual_seed(0)
    for name, kinds in kinds_of.items():
        reader = Reader(done, {kind: weights[kind] for kind in kinds}, unembedding, name)
        for earlier in heads_before(model, name):
            written = done.part(earlier, before=name)
            written = written - written.mean((0, 1))
            source = rows.tokens.gather(1, done.pattern(earlier).argmax(-1))
            for side in reader.sides(source):
                by_cut = reader.lost(side, written, source)
                controls = []
                if max(by_cut.values()) >= LEAST["wire"]:
                    for _ in range(N_CONTROLS):
                        controls.append(reader.lost(side, turned(written, generator), source))
                for kind, value in by_cut.items():
                    null = torch.tensor([control[kind] for control in controls])
                    yield wire_row(f"{earlier}->{name}.{side}", kind, value, null)


def heads_before(model: Any, name: str) -> list[str]:
    """Return the heads of earlier layers."""
    step = step_of(model, parse(name)[0])
    return [head for head in head_names(model) if step_of(model, parse(head)[0]) < step]


def turned(vectors: Stream, generator: torch.Generator) -> Stream:
    """Turn vectors in a random direction, all in the same way: coordinates change place and sign."""
    n = vectors.shape[-1]
    signs = 2.0 * torch.randint(2, (n,), generator=generator) - 1
    return vectors[..., torch.randperm(n, generator=generator)] * signs


def wire_row(wire: str, kind: str, lost: float, null: Float[Tensor, " control"]) -> Row:
    """Return the row of a wire; its p-value is 1 if it loses less than the floor."""
    if not len(null):
        return row(wire, "wire", lost, p=1.0, text=kind)
    p = upper_tail(lost - null.mean() - LEAST["wire"], null.std())
    return row(wire, "wire", lost, control=null.mean(), p=p, text=kind)


def circuits(scores: list[Row], wire_rows: list[Row]) -> list[Row]:
    """Join the wires that a report names into circuits.

    Induction is a head that matches prefixes and copies, with all wires into its queries and keys.
    A virtual head is a wire into values, through which the later head copies what the earlier one
    has attended to.
    """
    behaviours = {(score["name"], score["measure"]) for score in scores if score["named"]}
    found: dict[tuple[str, str], list[Row]] = {}
    for entry in wire_rows:
        _, _, end = entry["name"].partition("->")
        head, _, side = end.partition(".")
        if not entry["named"]:
            continue
        if side == "V":
            found["virtual head", entry["name"]] = [entry]
        elif entry["text"] == "prefix matching" and (head, "copying") in behaviours:
            found.setdefault(("induction", head), []).append(entry)
    result = []
    for (kind, _), parts in found.items():
        names = ", ".join(dict.fromkeys(part["name"] for part in parts))
        weakest = min(part["value"] for part in parts)
        circuit = row(names, kind, weakest, p=max(part["p"] for part in parts))
        result.append(circuit | {"named": True})
    return result
