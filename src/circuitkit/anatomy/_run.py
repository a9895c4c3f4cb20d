"""One loop that runs any anatomy and keeps what every part did, with parts and wires taken out where asked."""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._blocks import pieces
from circuitkit._contract import Natural, PartName, must, public
from circuitkit._heads import Heads
from circuitkit.anatomy._address import Address, join, read
from circuitkit.anatomy._neurons import Neurons
from circuitkit.anatomy._sublayer import Anatomy, Norm, Sublayer

_MOST_NUMBERS = 2**24
# what the loop gives them is right: no door
_side, _scores_of = map(inspect.unwrap, (Heads.side, Heads.scores_of))
Fill = Callable[[Tensor], Tensor]


_one_part = lambda name: (
    (read(name)[0].input is None and len(read(name)) == 1)
    or "one part; not an input, a wire or a path"
)


@public
@must(_one_part, "name")
@must(_one_part, "head")
@must(
    lambda before, self: (
        before <= len(self.model.steps) or f"a step of the model, 0 to {len(self.model.steps)}"
    )
)
@must(
    lambda row, pos, self: (
        (row < len(self.tokens) and pos < self.tokens.shape[1]) or "a place of these tokens"
    )
)
@must(
    lambda row, dst, src, self: (
        (row < len(self.tokens) and src <= dst < self.tokens.shape[1])
        or "places of these tokens, no source after dst"
    )
)
@must(
    lambda W, self: (
        (W.shape[-2], W.dtype) == (self.model.d_model, self.model.W_E.dtype)
        or f"{self.model.d_model} rows of its dtype"
    )
)
@dataclass(eq=False, repr=False)
class Run:
    """One forward pass in parts. A part's values are made from what its sublayer gathered when they are asked for.

    **Shapes**: streams and parts `[batch, pos, d_model]`. **Error**: the parts add up to the stream up to rounding.
    **Source**: "A Mathematical Framework for Transformer Circuits", the residual stream as a sum.
    """

    model: Anatomy
    tokens: Int[Tensor, "batch pos"]
    starts: dict[str, Tensor] = field(default_factory=dict)
    gathered: dict[str, Tensor] = field(default_factory=dict)
    """By sublayer: `z[batch, head, pos, d_head]` of heads, what a whole MLP wrote; `z` of neurons if it was changed."""
    patterns: dict[str, Tensor] = field(default_factory=dict)
    """By sublayer of heads, `[batch, head, dst, src]`, unless they were watched instead."""
    norms: dict[str, tuple[Norm | None, Norm | None]] = field(default_factory=dict)
    """By sublayer: the norms before and after it, frozen."""
    closings: dict[int, Norm] = field(default_factory=dict)
    """Frozen norms of the whole stream, by step; -1 is the opening one."""
    streams: list[Tensor] = field(default_factory=list)
    """The stream before each step, and the last one."""
    silent: frozenset[str] = frozenset()
    """Sublayers whose bias was taken out."""
    unembedded: Tensor | None = None
    """What the unembedding reads where that is not the last stream, because wires into it were cut."""

    def __repr__(self) -> str:
        return f"Run({tuple(self.tokens.shape)} tokens through {self.model!r})"

    @cached_property
    def final(self) -> Norm | None:
        """The last norm, frozen."""
        return None if self.model.final is None else self.model.final.freeze(self._last)

    @property
    def _last(self) -> Tensor:
        last = self.streams[-1] if self.unembedded is None else self.unembedded
        return last if self.model.head is None else self.model.head(last)

    @cached_property
    def logits(self) -> Float[Tensor, "batch pos d_vocab"]:
        model = self.model
        out = (self._last if self.final is None else self.final(self._last)) @ model.W_U
        out = out if model.b_U is None else out + model.b_U
        return out if model.cap is None else model.cap * (out / model.cap).tanh()

    def read_by(self, sub: Sublayer, stream: Tensor) -> Tensor:
        norm = self.norms[sub.name][0]
        return stream if norm is None else norm(stream)

    def pattern(self, head: PartName) -> Float[Tensor, "batch pos *src"]:
        """The pattern of one head; of a neuron-head, `[batch, pos]`, its attention on the token itself, not the bias token."""
        step, sub, rows, _ = self.model.find(head)
        if rows is None or len(rows) != 1:
            raise ValueError(
                f"{head!r} is not one head; patterns belong to heads such as 'L0H1' and 'L0N12.0'"
            )
        if isinstance(sub.inside, Neurons):
            gate, _ = sub.inside.reads(self.read_by(sub, self.streams[step]))
            return sub.inside.looks(gate)[..., rows[0]]
        return self.patterns[sub.name][..., rows[0], :, :]

    def z(self, sub: Sublayer) -> Tensor:
        """What the heads of a sublayer gathered, `[batch, head, pos, d_head]`; of neuron-heads `[batch, pos, head]`."""
        if isinstance(sub.inside, Neurons) and sub.name not in self.gathered:
            step = self.model.find(f"L{sub.layer} MLP").step
            return sub.inside.z(*sub.inside.reads(self.read_by(sub, self.streams[step])))
        return self.gathered[sub.name]

    def part(
        self, name: PartName, before: Natural | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """What one part left in the stream before a step (by default, the last stream); norms behind it are frozen."""
        step, sub, rows, is_bias = self.model.find(name)
        if step == len(self.model.steps):
            raise ValueError(
                f"{name!r} writes nothing; parts are {', '.join(self.model.parts()[:6])}, ..."
            )
        if (
            before is not None and step > before
        ):  # at its own step it is what it writes, before what follows
            raise ValueError(
                f"{name!r} is not in the stream before step {before}; expected one of {', '.join(self.model.parts(before))}"
            )
        return self._part(name, before)

    def _part(self, name: str, before: int | None) -> Tensor:
        step, sub, rows, is_bias = self.model.find(name)
        if is_bias:
            return self._bias(step, sub, before)
        if sub is None:
            return self._carried(self.starts[read(name)[0].kind], step, before)
        inside = sub.inside
        if isinstance(inside, Heads):
            z = self.gathered[sub.name][..., list(rows), :, :]
            out = torch.einsum("...hpd,hdm->...pm", z, inside.W_O[list(rows)])
        elif not isinstance(inside, Neurons):
            out = self.gathered[sub.name]
        elif rows is not None:
            out = (
                self.z(sub)[..., list(rows)]
                @ inside.W_out[[row // len(inside.terms) for row in rows]]
            )
        elif sub.name in self.gathered:
            out = (
                self.gathered[sub.name].unflatten(-1, (-1, len(inside.terms))).sum(-1)
                @ inside.W_out
            )
        else:
            out = inside.written(*inside.reads(self.read_by(sub, self.streams[step])))
        out = self._left(sub, out, step, before)
        # "L0 MLP" of a converted model is the whole of it, its bias too, as it was before it became heads
        return (
            out + self._bias(step, sub, before)
            if rows is None and isinstance(inside, Neurons)
            else out
        )

    def _left(self, sub: Sublayer, out: Tensor, step: int, before: int | None) -> Tensor:
        """A share of what a sublayer wrote behind the norms that follow."""
        after = self.norms[sub.name][1]
        return self._carried(out if after is None else after.linear(out), step, before)

    def parts(
        self, before: int | None = None
    ) -> Iterator[tuple[tuple[str, ...], Float[Tensor, "part batch pos d_model"]]]:
        """Every part's share of the stream before a step, sublayer by sublayer; neuron-heads of a layer together."""
        for step, sub, names in self.model.groups(before, neurons=False):
            if sub is not None and isinstance(sub.inside, Heads):
                written = torch.einsum(
                    "...hpd,hdm->h...pm", self.gathered[sub.name], sub.inside.W_O
                )
                yield sub.parts, self._left(sub, written, step, before)
                names = names[sub.n_parts :]
            if names:
                yield names, torch.stack([self.part(name, before) for name in names])

    def _bias(self, step: int, sub: Sublayer | None, before: int | None) -> Tensor:
        """What is added whatever the stream holds: by a sublayer, and by the norm that closes its step."""
        out, closing = torch.zeros_like(self.streams[0]), self.closings.get(step)
        if sub is not None:
            out = self._carried(out + self.bias_of(sub), step, before)
        last = sub is None or sub is self.model.steps[step].sublayers[-1]
        if (
            closing is not None
            and closing.bias is not None
            and last
            and (before is None or before > step)
        ):
            out = out + self._carried(torch.zeros_like(out) + closing.bias, step + 1, before)
        return out

    def bias_of(self, sub: Sublayer) -> Tensor:
        """What a sublayer adds whatever it reads: its bias behind the norm that follows, and that norm's."""
        own = (
            torch.zeros_like(self.streams[0])
            if sub.bias is None or sub.name in self.silent
            else sub.bias
        )
        return own if (after := self.norms[sub.name][1]) is None else after(own)

    def _carried(self, out: Tensor, step: int, before: int | None) -> Tensor:
        """A share of the stream behind the norms of the whole stream that follow."""
        for number in range(step, len(self.model.steps) if before is None else before):
            out = self.closings[number].linear(out) if number in self.closings else out
        return out

    def shares(
        self,
        W: Float[Tensor, "*row d_model out"],
        before: Natural | None = None,
        neurons: bool = True,
    ) -> Iterator[tuple[tuple[str, ...], Float[Tensor, "part batch pos out"]]]:
        """`part @ W` for every part in the stream before a step, a group at a time: no part is formed in d_model.

        `W` may differ by row, `[batch, pos, d_model, out]`; without `neurons`, a layer's neuron-heads are one part; norms are
        frozen.
        """
        for step, sub, names in self.model.groups(before, neurons):
            plain = names
            if sub is not None and (neurons or not isinstance(sub.inside, Neurons)):
                yield from self._shares_of(
                    sub, names[: sub.n_parts], self._pulled(W, step, sub, before)
                )
                plain = names[sub.n_parts :]
            if plain:
                yield plain, torch.stack([_times(self.part(name, before), W) for name in plain])

    def _pulled(self, W: Tensor, step: int, sub: Sublayer, before: int | None) -> Tensor:
        """The matrix that does to what a sublayer writes what frozen norms and then `W` do."""
        norms = [
            self.closings.get(n)
            for n in range(len(self.model.steps) if before is None else before)
            if n >= step
        ]
        for norm in [*reversed(norms), self.norms[sub.name][1]]:
            W = W if norm is None else norm.fold(W) / norm.scale[..., None]
        return W

    def _shares_of(
        self, sub: Sublayer, names: tuple[str, ...], V: Tensor
    ) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        z, inside = self.z(sub), sub.inside
        if isinstance(inside, Neurons):
            k = len(inside.terms)
            step = max(1, _MOST_NUMBERS // max(1, z[..., 0].numel() * V.shape[-1] * k))
            for first in range(0, inside.W_out.shape[0], step):
                rows = slice(first, first + step)
                some = z.unflatten(-1, (-1, k))[..., rows, :].movedim((-2, -1), (0, 1))
                written = (inside.W_out[rows] @ V).movedim(-2, 0)
                written = written[:, None] if V.ndim > 2 else written[:, None, None, None]
                shares = (some[..., None] * written).flatten(0, 1)
                yield names[first * k : first * k + len(shares)], shares
        elif isinstance(inside, Heads) and V.shape[-1] == 1 and V.ndim > 2:
            # one number at each place: what it asks for is taken through W_O first, and no head's output is formed
            asked = torch.einsum("hdm,bpm->hbpd", inside.W_O, V[..., 0])
            yield names, (z.movedim(1, 0) * asked).sum(-1, keepdim=True)
        elif isinstance(inside, Heads):
            yield names, _times(torch.einsum("...hpd,hdm->h...pm", z, inside.W_O), V)
        else:
            yield names, _times(z, V)[None]

    def where(self, row: Natural, pos: Natural) -> "Run":
        """The same run at one position of one row, `[1, 1, d_model]`: enough for shares, not for patterns."""
        at = (slice(row, row + 1), slice(pos, pos + 1))
        norm = lambda n: None if n is None else n.at(*at)  # noqa: E731
        heads = {sub.name for sub in self.model.sublayers if isinstance(sub.inside, Heads)}
        return replace(
            self,
            tokens=self.tokens[at],
            starts={name: value[at] for name, value in self.starts.items()},
            gathered={
                n: z[at[0], :, at[1]] if n in heads else z[at] for n, z in self.gathered.items()
            },
            patterns={},
            norms={
                name: (norm(before), norm(after)) for name, (before, after) in self.norms.items()
            },
            closings={number: closing.at(*at) for number, closing in self.closings.items()},
            streams=[stream[at] for stream in self.streams],
            unembedded=None if self.unembedded is None else self.unembedded[at],
        )

    def score_sides(
        self, head: PartName, dst: Natural, src: Natural, row: Natural = 0, neurons: bool = True
    ) -> tuple[tuple[str, ...], Float[Tensor, "query d_head"], Float[Tensor, "key d_head"]]:
        """What each part asks for at `dst` and offers at `src`, `"bias"` last: the score is the sum of all products of the two.

        Norms are frozen; rotary positions, groups and norms of queries and keys are in it, a cap is not. Without `neurons`,
        neuron-heads of a layer are one part. **Error**: rounding.
        """
        step, sub, rows, _ = self.model.find(head)
        if sub is None or not isinstance(sub.inside, Heads) or rows is None:
            raise ValueError(
                f"{head!r} is no attention head; scores are taken apart for heads such as 'L1H3'"
            )
        heads, own = sub.inside, sub.inside[list(rows)]
        sides, groups = [], []
        for kind, pos in (("Q", dst), ("K", src)):
            here = self.where(row, pos)
            before, W = here.norms[sub.name][0], getattr(own, f"W_{kind}")[0]
            pulled = W if before is None else before.fold(W) / before.scale[..., None]
            groups = list(here.shares(pulled, step, neurons))
            table = torch.cat([values[:, 0, 0] for _, values in groups])
            constant = (
                torch.zeros_like(table[:1])
                if before is None or before.bias is None
                else (before.bias @ W)[None]
            )
            b = getattr(own, f"b_{kind}")
            table = torch.cat([table, constant if b is None else constant + b])[None]
            norm = getattr(own, f"norm_{kind}")
            if norm is not None:
                whole = replace(
                    heads, norm_Q=None, norm_K=None, turn=None, positions="absolute"
                ).side(kind, here.read_by(sub, here.streams[step]))[0]
                norm = getattr(heads, f"norm_{kind}")
                norm = Norm(norm.gain, None, norm.eps, False, norm.over_layer)
                norm = norm.freeze(whole).only(rows[0])
                table = norm.linear(table)
                if norm.bias is not None:
                    table[:, -1] += norm.bias[0, 0]
            table = (
                table if own.turn is None else own.turn(table, torch.full(table.shape[1:2], pos))
            )
            sides.append(table[0])
        names = tuple(name for some, _ in groups for name in some)
        return (*names, "bias"), sides[0] / own.scale, sides[1]


def _times(parts: Tensor, W: Tensor) -> Tensor:
    return parts @ W if W.ndim == 2 else torch.einsum("...m,...mo->...o", parts, W)


_INPUTS = {Heads: "QKV", Neurons: "QV"}


def _covers(wide: tuple[Address, ...], narrow: tuple[Address, ...]) -> bool:
    """Whether cutting `wide` cuts `narrow` already: an input covers its wires, a wire the paths that end in it."""
    is_part = len(wide) == 1 and wide[0].input is None and wide[0].kind != "unembed"
    if is_part or len(wide) > len(narrow):
        return False
    for one, other in zip(wide, narrow[-len(wide) :], strict=True):
        same_part = (one.kind, one.layer, one.number) == (other.kind, other.layer, other.number)
        same_input = one.input in (None, other.input)
        same_term = one.term in (None, other.term)
        if not (same_part and same_input and same_term):
            return False
    return True


def _uncovered(names: Sequence[str]) -> list[str]:
    """The names that no other name covers, so that nothing is subtracted twice."""
    chains = {read(name): name for name in names}
    needed = []
    for chain, name in chains.items():
        if not any(_covers(wide, chain) for wide in chains if wide != chain):
            needed.append(name)
    return needed


class _Cuts:
    """What to replace, by sublayer: heads of it, its bias, and wires into it; and how."""

    def __init__(
        self,
        model: Anatomy,
        without: "str | Sequence[str]",
        fill: "str | Fill",
        source: Run | None,
        at: Any,
    ):
        self.model, self.starts = model, set()
        named: dict[Any, Any] = {
            "zero": torch.zeros_like,
            "mean": lambda x: x.mean(0, keepdim=True).expand_as(x),
        }
        self.fill: Any = named.get(fill, fill)
        self.source, self.at = source, at
        self.runs: dict[str, Run] = {}  # in which the beginning of a path is patched
        self.again: Callable[[str], Run]
        self.rows: dict[str, Any] = {}
        self.biases: set[str] = set()
        self.wires: dict[str, dict[tuple[str, tuple[int, ...] | None], list[str]]] = defaultdict(
            lambda: defaultdict(list)
        )
        names = [without] if isinstance(without, str) else list(without)
        steps = [self._add(name) for name in _uncovered(names)]
        self.first = min(steps, default=len(model.steps))

    def replaced(self, now: Tensor, of: Callable[[Run], Tensor]) -> Tensor:
        """What stands for a value of this run: the fill of it, or of its like in the source; positions are second to last."""
        new = self.fill(now if self.source is None else of(self.source))
        if not len(self.at):
            return new
        chosen = torch.zeros(now.shape[-2], 1, dtype=torch.bool, device=now.device)
        chosen[list(self.at)] = True
        return torch.where(chosen, new, now)

    def _add(self, name: str) -> int:
        """Note one name; the step from which on the run is another."""
        *earlier, last = read(name)
        place = self.model.find(last)
        if not earlier:
            step, sub, rows, is_bias = place
            if last.input is not None or step == len(self.model.steps):
                return self._wire(name, "", place, last.input)
            if sub is None:
                self.starts.add(last.kind)
            elif is_bias:
                self.biases.add(sub.name)
            elif rows is None:
                self.rows[sub.name] = None
                self.biases |= {sub.name} if isinstance(sub.inside, Neurons) else set()
            elif self.rows.get(sub.name, ()) is not None:
                self.rows[sub.name] = [*self.rows.get(sub.name, []), *rows]
            return step
        steps = [self.model.find(one).step for one in (*earlier, last)]
        if (
            any(b <= a for a, b in zip(steps, steps[1:], strict=False))
            or place.is_bias
            or earlier[0].input
        ):
            raise ValueError(
                f"without got {name!r}; expected a part before the arrow that runs before what is behind it, because a part "
                "reads only what earlier steps have written. Parts of one layer that read the same stream run side by side."
            )
        return self._wire(name, join(*earlier), place, last.input)

    def _wire(self, name: str, source: str, place: Any, kind: str | None) -> int:
        """Note what an input shall read otherwise: all of it, or what one part wrote, there or as a path has changed it."""
        sub = place.sublayer
        kinds = "" if sub is None else _INPUTS.get(type(sub.inside), "")
        if kind is not None and kind not in kinds:
            has = f"the inputs {', '.join(kinds)}" if kinds else "one input"
            text = f"without got {name!r}; {read(name)[-1].part} has {has}"
            raise ValueError(text + (": its keys read the bias token" * (kinds == "QV")))
        for one in kind or kinds or " ":
            self.wires["unembed" if sub is None else sub.name][one, place.rows].append(source)
        return place.step

    def read_instead(self, now: Run, x: Tensor, source: str, step: int) -> Tensor:
        """By how much an input's stream is another."""
        if not source:
            return self.replaced(x, lambda run: run.streams[step]) - x
        *earlier, last = read(source)
        name = str(last.part)
        own = now.part(name, step)
        if not earlier:
            return self.replaced(own, lambda run: run.part(name, step)) - own
        if (
            source not in self.runs
        ):  # what this part writes when the path to it is patched, and nothing else
            self.runs[source] = self.again(source)
        return self.runs[source].part(name, step) - own


def forward(
    model: Anatomy,
    tokens: Int[Tensor, "batch pos"],
    without: "str | Sequence[str]",
    fill: "str | Fill",
    edit: Callable[[Sublayer, Tensor], Tensor] | None,
    watch: Callable[[Sublayer, Tensor, Tensor, slice], None] | None,
    base: Run | None,
    grad: bool,
    source: Run | None = None,
    at: Sequence[int] = (),
) -> Run:
    """The loop behind `Anatomy.run`."""
    cuts = _Cuts(model, without, fill, source, at)
    cuts.again = lambda path: forward(model, tokens, path, fill, edit, None, base, grad, source, at)
    with torch.set_grad_enabled(grad):
        now = Run(model, tokens.to(model.W_E.device), silent=frozenset(cuts.biases))
        begin = cuts.first if base is not None and edit is None and watch is None else -1
        x = _opened(now, cuts) if base is None or begin <= 0 else _resumed(now, base, begin)
        for number, step in enumerate(model.steps):
            if number < begin:
                continue
            now.streams.append(x)
            x = x + sum(_through(now, number, sub, x, cuts, edit, watch) for sub in step.sublayers)
            x = _closed(now, number, step.closing, x)
        now.streams.append(x)
        if "unembed" in cuts.wires:
            (now.unembedded,) = _wired(now, "unembed", None, x, len(model.steps), cuts).values()
    return now


def _opened(now: Run, cuts: _Cuts) -> Tensor:
    model = now.model
    embed = model.W_E[now.tokens]
    now.starts["embed"] = embed if model.gain == 1.0 else embed * model.gain
    if model.W_pos is not None:
        now.starts["pos"] = model.W_pos[: now.tokens.shape[1]].expand_as(embed)
    for name in cuts.starts:
        now.starts[name] = cuts.replaced(now.starts[name], lambda run, name=name: run.starts[name])
    begun = now.starts["embed"] if model.W_pos is None else now.starts["embed"] + now.starts["pos"]
    return _closed(now, -1, model.opening, begun)


def _resumed(now: Run, base: Run, begin: int) -> Tensor:
    """Take over what ran before the first change."""
    kept = {sub.name for step in now.model.steps[:begin] for sub in step.sublayers}
    now.starts, now.streams = dict(base.starts), base.streams[:begin]
    pairs: Any = (
        (now.gathered, base.gathered),
        (now.patterns, base.patterns),
        (now.norms, base.norms),
    )
    for mine, its in pairs:
        mine.update({name: value for name, value in its.items() if name in kept})
    now.closings = {number: norm for number, norm in base.closings.items() if number < begin}
    return base.streams[begin]


def _closed(now: Run, number: int, closing: Norm | None, x: Tensor) -> Tensor:
    if closing is None:
        return x
    now.closings[number] = closing.freeze(x)
    return now.closings[number](x)


def _wired(
    now: Run, name: str, norm: Norm | None, x: Tensor, step: int, cuts: _Cuts
) -> dict[tuple, Tensor]:
    """What the inputs with cut wires read, by `(kind, heads)`: the norm of the stream without the wires' sources."""
    readers: dict[tuple, list[int]] = defaultdict(list)
    for (kind, rows), sources in cuts.wires.get(name, {}).items():
        readers[tuple(dict.fromkeys(sources)), kind] += () if rows is None else rows
    less: dict[tuple[str, ...], Tensor] = {}
    for sources in {sources for sources, _ in readers}:
        stream = x + sum(cuts.read_instead(now, x, source, step) for source in sources)
        less[sources] = stream if norm is None else norm(stream)
    return {(kind, tuple(rows)): less[sources] for (sources, kind), rows in readers.items()}


def _through(
    now: Run, number: int, sub: Sublayer, x: Tensor, cuts: _Cuts, edit: Any, watch: Any
) -> Tensor:
    """What one sublayer adds to the stream."""
    before = None if sub.before is None else sub.before.freeze(x)
    now.norms[sub.name] = (before, None)
    read = x if before is None else before(x)
    wires = _wired(now, sub.name, sub.before, x, number, cuts)
    rows = cuts.rows.get(sub.name, [])
    how = (wires, rows, cuts, edit)
    if isinstance(sub.inside, Heads):
        out = _attend(now, sub, read, *how, watch)
    elif isinstance(sub.inside, Neurons):
        out = _choose(now, sub, read, *how)
    else:
        out = sub.inside(next(iter(wires.values()), read))
        out = cuts.replaced(out, lambda run: run.gathered[sub.name]) if rows is None else out
        out = now.gathered[sub.name] = out if edit is None else edit(sub, out)
    if sub.bias is not None and sub.name not in cuts.biases:
        out = out + sub.bias
    if sub.after is None:
        return out
    after = sub.after.freeze(out)
    now.norms[sub.name] = (before, after)
    return after(out)


def _attend(
    now: Run,
    sub: Sublayer,
    read: Tensor,
    wires: dict,
    rows: Any,
    cuts: _Cuts,
    edit: Any,
    watch: Any,
) -> Tensor:
    heads = sub.inside
    sides = {kind: _side(heads, kind, read) for kind in "QKV"}
    for (kind, which), stream in wires.items():
        which = list(which) or list(range(len(heads)))
        mixed = getattr(getattr(heads, f"norm_{kind}", None), "across", False)
        new = (
            _side(heads, kind, stream)[..., which, :, :]
            if mixed
            else _side(heads[which], kind, stream)
        )
        sides[kind] = sides[kind].index_copy(-3, torch.tensor(which, device=new.device), new)
    q, gathered, n = sides["Q"], [], read.shape[-2]
    gate, allowed = None if sub.gate is None else sub.gate(read), heads.allowed(n, read.device)
    for some in (
        [slice(0, n)] if watch is None else pieces(n, q[..., :1, 0].numel() * n, _MOST_NUMBERS)
    ):
        pattern = (
            _scores_of(heads, q[..., some, :], sides["K"])
            .masked_fill_(~allowed[some], -math.inf)
            .softmax(-1)
        )
        pattern = pattern if gate is None else pattern * gate[..., some, :]
        if watch is None:
            now.patterns[sub.name] = pattern
        else:
            watch(sub, pattern, sides["V"], slice(some.start, min(some.stop, n)))
        gathered.append(pattern @ sides["V"])
    z = gathered[0] if len(gathered) == 1 else torch.cat(gathered, -2)
    if rows:
        z[..., rows, :, :] = cuts.replaced(
            z[..., rows, :, :], lambda run: run.gathered[sub.name][..., rows, :, :]
        )
    z = now.gathered[sub.name] = z if edit is None else edit(sub, z)
    return torch.einsum("...hpd,hdm->...pm", z, heads.W_O)


def _choose(
    now: Run, sub: Sublayer, read: Tensor, wires: dict, rows: Any, cuts: _Cuts, edit: Any
) -> Tensor:
    neurons = sub.inside
    gate, value = neurons.reads(read)
    if not wires and rows == [] and edit is None:
        return neurons.written(gate, value)
    z = neurons.z(gate, value)
    changed: dict[Any, dict[str, tuple[Tensor, Tensor]]] = defaultdict(dict)
    for (kind, which), stream in wires.items():
        changed[which][kind] = neurons.reads(stream)
    for which, kinds in changed.items():
        g, v = kinds.get("Q", (gate, value))[0], kinds.get("V", (gate, value))[1]
        new, which = neurons.z(g, v), list(which) or slice(None)
        z[..., which] = new[..., which]
    if rows != []:
        which = slice(None) if rows is None else rows
        z[..., which] = cuts.replaced(z[..., which], lambda run: run.z(sub)[..., which])
    z = now.gathered[sub.name] = z if edit is None else edit(sub, z)
    return z.unflatten(-1, (-1, len(neurons.terms))).sum(-1) @ neurons.W_out
