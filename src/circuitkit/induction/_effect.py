"""What a circuit is worth: parts and wires replaced, or all but them, beside sets of the same kind that were drawn.

What a name takes out is said at `Anatomy.run`; here it is measured, with the control that a measurement needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Count, Names, Natural, Seed, given, ids, must, public
from circuitkit._heads import Heads
from circuitkit._state import is_finite, require_unhooked
from circuitkit._work import each, fingerprint, set_key
from circuitkit.anatomy import Anatomy, Run, anatomy, join, read
from circuitkit.anatomy._address import Address, unknown
from circuitkit.induction._stream import Repeated, repeating, second_pass, token_losses

Measure = Literal["loss", "accuracy"] | Callable[[Run], Tensor]
Source = Literal["zero", "mean", "resample"] | Int[Tensor, "batch pos"]
_TWO = "two rows or more that differ, because values come from other rows. Use longer batches or fill='zero'"


@dataclass(frozen=True, eq=False)
class Effect:
    """A measure before and after a change, row by row, and after the same change to drawn sets; in one line. **Source**: see
    `effect`.
    """

    done: str
    """What was done, in words."""
    measure: str
    sets: tuple[tuple[str, ...], ...]
    """The names that were given, then those of each drawn set."""
    values: Float[Tensor, "set row"]
    """The measure by row: of the whole model, after the change, then after each drawn set's."""

    @property
    def change(self) -> float:
        """Mean over rows of after minus before."""
        return float((self.values[1] - self.values[0]).mean())

    @property
    def interval(self) -> tuple[float, float]:
        """A 95 % interval of the change over rows, paired; NaN for one row, which has none."""
        paired = self.values[1] - self.values[0]
        error = 1.96 * float(paired.std()) / len(paired) ** 0.5 if len(paired) > 1 else float("nan")
        return self.change - error, self.change + error

    @property
    def controls(self) -> Float[Tensor, " draw"]:
        """The measure after each drawn set's change, mean over rows."""
        return self.values[2:].mean(1)

    @property
    def rank(self) -> int:
        """1 if no drawn set does as much when it is taken out (as little is lost when it is kept)."""
        moved = (self.values[1:].mean(1) - self.values[0].mean()).abs()
        return 1 + int(
            (
                moved[1:] <= moved[0] if self.done.startswith("keeping") else moved[1:] >= moved[0]
            ).sum()
        )

    def __repr__(self) -> str:
        before, after = self.values[:2].mean(1).tolist()
        told = f"{self.done}: {self.measure} {before:.2f} -> {after:.2f}, {self.change:+.2f} "
        several = self.values.shape[1] > 1
        told += (
            "[{:+.2f}, {:+.2f}] over {} rows".format(*self.interval, self.values.shape[1])
            if several
            else "on one row, so without an interval"
        )
        drawn = self.controls
        if not len(drawn):
            return f"{told}; no set of its kind to compare with"
        range_ = f"{drawn.median():.2f} ({drawn.min():.2f} to {drawn.max():.2f})"
        return f"{told}; {len(drawn)} matched sets: {range_}, rank {self.rank} of {1 + len(drawn)}"


class Bench:
    """A model on some rows, with the values that replace others: every change starts from one untouched run."""

    def __init__(self, model: Any, tokens: Any, fill: Any, measure: Any, at: Sequence[int] = ()):
        require_unhooked(model, "this measurement")
        self.model: Anatomy = anatomy(model)
        self.weights = model
        self.rows, self.measure, self.at = tokens, measure, at
        self.tokens = getattr(tokens, "tokens", tokens).to(self.model.W_E.device)
        self.base = self.model.run(self.tokens)
        other = not isinstance(fill, str)
        self.asked = fill.tolist() if other else fill
        self.source = self.model.run(fill) if other else self.base
        self.fill: Any = (
            (lambda x: x) if other else (lambda x: x.roll(1, 0)) if fill == "resample" else fill
        )

    def run(self, names: Sequence[str]) -> Run:
        how: Any = {"fill": self.fill, "base": self.base, "source": self.source, "at": self.at}
        return self.model.run(self.tokens, without=names, **how) if names else self.base

    def without(self, names: Sequence[str]) -> Float[Tensor, " row"]:
        return self.measured(self.run(names))

    def each(self, sets: Sequence[Sequence[str]], what: str) -> Float[Tensor, "set row"]:
        """The measure by row without each of these sets, kept as `kept_in` says."""
        items, like = {set_key(names): (names,) for names in sets}, self.model.W_U
        found = dict(zip(items, each(self.without, items, what, self.key), strict=True))
        rows = (found[set_key(names)] for names in sets)
        return torch.stack(
            [
                torch.as_tensor(
                    row, dtype=None if isinstance(row, Tensor) else like.dtype, device=like.device
                )
                for row in rows
            ]
        )

    def key(self) -> str:
        if not isinstance(self.measure, str):
            raise ValueError(
                "a measure of your own has no name to be kept by; expected measure='loss' or 'accuracy' inside kept_in. Call it outside"
            )
        return fingerprint(
            self.weights,
            self.tokens.tolist(),
            isinstance(self.rows, Repeated) and self.rows[1:],
            self.asked,
            list(self.at),
            self.measure,
        )

    def measured(self, run: Run) -> Float[Tensor, " row"]:
        if not isinstance(self.measure, str):
            return self.own(run)
        logits = run.logits
        if isinstance(self.rows, Repeated):
            loss, right = second_pass(logits, self.rows)
            return loss if self.measure == "loss" else right
        if self.measure == "loss":
            return token_losses(logits, run.tokens).mean(1)
        return (logits[:, :-1].argmax(-1) == run.tokens[:, 1:]).to(logits.dtype).mean(1)

    def own(self, run: Run) -> Float[Tensor, " row"]:
        """What a user's function gives for a run, if that is a number a row."""
        asked, n = (
            "expected a function of a Run (run.logits is [row, pos, d_vocab]) that gives one number a row, such as lambda run: run.logits[:, -1, 5]",
            len(self.tokens),
        )
        try:
            found = self.measure(run)
        except Exception as problem:
            raise ValueError(
                f"measure= failed on a Run: {type(problem).__name__}: {problem}; {asked}."
            ) from problem
        if (
            isinstance(found, Tensor)
            and found.shape == (n,)
            and not found.is_complex()
            and is_finite(found.detach())
        ):
            return found if found.is_floating_point() else found.to(run.model.W_U.dtype)
        raise ValueError(
            f"measure= gave {given('a value', found)}; {asked}, {n} finite numbers here."
        )


_one_choice = lambda without, keep: (
    bool(without) != bool(keep)
    or "names in one of the two: without= to take them out, keep= to take out all others"
)
_enough = lambda fill, tokens: (
    not isinstance(fill, str)
    or fill == "zero"
    or len({*map(tuple, getattr(tokens, "tokens", tokens).tolist())}) > 1
    or _TWO
)
_repeats = lambda tokens: (
    not isinstance(tokens, Repeated)
    or repeating(tokens)
    or "rows that repeat with this period from this start. Make them with repeated_tokens(...)"
)
_once = lambda names: (
    len({join(*read(name)) for name in _listed(names)}) == len(_listed(names)) or "each name once"
)
_alike = lambda fill, tokens: (
    isinstance(fill, str)
    or fill.shape == getattr(tokens, "tokens", tokens).shape
    or "rows of the shape of tokens"
)


@public
@ids(least=2)
@must(_repeats)
@must(_one_choice)
@must(lambda without: _once(without))
@must(lambda keep: _once(keep))
@must(_enough)
@must(_alike)
@must(
    lambda keep: (
        all(
            len(read(name)) < 3 and (len(read(name)) > 1 or not read(name)[0].input)
            for name in _listed(keep)
        )
        or "parts or wires, of which it is known what all others are; inputs and paths can be taken out"
    )
)
@must(
    lambda at, tokens: (
        max(at, default=0) < getattr(tokens, "tokens", tokens).shape[1] or "positions of these rows"
    )
)
def effect(
    model: AnyModel,
    tokens: Int[Tensor, "batch pos"] | Repeated,
    without: Names = (),
    *,
    keep: Names = (),
    fill: Source = "zero",
    at: Sequence[Natural] = (),
    measure: Measure = "loss",
    against: Literal["layers", "size", "both"] = "layers",
    draws: Count = 20,
    seed: Seed = 0,
) -> Effect:
    """What replacing parts, inputs, wires or paths does, with its interval over rows and the same done to drawn sets.

    `without` names what is replaced (is it needed?), `keep` what is not, of all parts of its kind (is it enough?). `fill`: by
    nothing, by the untouched model's `"mean"` over the rows at each position, by the row's before (`"resample"`; the first has the last's), or by
    those that it has on other rows, given as tokens; `at` some positions only. `measure`: loss or accuracy, on the second
    pass of `Repeated` rows, else everywhere; or a function of the `Run` that gives a number a row. Drawn sets have as many
    names of the same kind from the same layers; against `"size"`, each name's stand-in is one of the 20 whose source writes
    most nearly as much, against `"both"` one of the 20 nearest of the same layers (its own source, read by others, too). Of MLPs
    and biases a layer has one, so theirs come from other layers. Under grouped queries a wire into one head's K gives that head a key of its own. **Error**: exact for
    these rows; the interval is that of a normal mean. **Source**: "Interpretability in the Wild" (Wang et al. 2022), patching
    and its two questions; the drawn controls are this book's.

    >>> from circuitkit.handmade import build_induction_model
    >>> from circuitkit.induction import repeated_tokens
    >>> rows = repeated_tokens(20, 8)
    >>> effect(build_induction_model(20, 16), rows, "L0H0->L1H0.K", measure="accuracy").change < -0.9
    True
    """
    bench = Bench(model, tokens, fill, measure, at)
    names = tuple(join(*read(name)) for name in _listed(keep or without))
    rest = _of_kind(bench.model, names) if keep else ()
    if keep and (strange := {*names} - {*rest}):
        raise unknown("part or wire", min(strange), rest)
    taken = (lambda some: [name for name in rest if name not in {*some}]) if keep else list
    sets = (names, *_drawn(bench, names, against, draws, seed))
    values = bench.each([(), *map(taken, sets)], "effect")
    shown = (
        ", ".join(names)
        if len(names) < 4
        else f"{len(names)} {'wires' if '->' in names[0] else 'parts'}"
    )
    how = (fill if isinstance(fill, str) else "from other rows") + (
        f", at {len(at)} positions" if len(at) else ""
    )
    said = f"{'keeping' if keep else 'without'} {shown}{f' of {len(rest)}' if keep else ''} ({how})"
    return Effect(said, measure if isinstance(measure, str) else "measure", sets, values)


def _listed(names: Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _of_kind(model: Anatomy, names: Sequence[str]) -> tuple[str, ...]:
    """All parts, or wires between heads, of the kinds that these are of."""
    chains = [read(name) for name in names]
    wired: Any = {chain[-1].input for chain in chains if len(chain) > 1}
    wires = [wire for kind in sorted(wired) for wire in paths(model, kind)]
    return tuple(
        dict.fromkeys(
            wires
            + [
                name
                for chain in chains
                if len(chain) == 1
                for name in _alike_parts(model, chain[0])
            ]
        )
    )


def _alike_parts(model: Anatomy, one: Address) -> list[str]:
    """All parts of a part's kind: whole neurons for a neuron of several heads, whole MLPs for an MLP of neurons."""
    found = (read(name)[0] for name in model.parts(neurons=one.kind != "MLP"))
    return list(
        dict.fromkeys(
            str(it if one.term is not None or it.kind != "N" else replace(it, term=None))
            for it in found
            if it.kind == one.kind
        )
    )


def _drawn(
    bench: Bench, names: tuple[str, ...], against: str, draws: int, seed: int
) -> list[tuple[str, ...]]:
    """Sets of names like these: each name's stand-in is drawn from its pool, and none is drawn twice in a set."""
    pools = [_pool(bench, name, against) for name in names]
    free = [[one for one in pool if one not in names] for pool in pools]
    # where the given names leave too little, a set may hold some of them, but never all
    pools = [
        left if len(left) >= pools.count(pool) else pool
        for pool, left in zip(pools, free, strict=True)
    ]
    generator, seen = torch.Generator().manual_seed(seed), {frozenset(names): names}
    for _ in range(20 * draws):
        chosen: dict[str, None] = {}
        for pool in pools:
            order = torch.randperm(len(pool), generator=generator).tolist()
            chosen.update(dict.fromkeys([pool[i] for i in order if pool[i] not in chosen][:1]))
        if len(chosen) == len(names):
            seen.setdefault(frozenset(chosen), tuple(chosen))
        if len(seen) > draws:
            break
    return list(seen.values())[1:]


def _pool(bench: Bench, name: str, against: str) -> list[str]:
    """What may stand in for a name: its kind in its layer (any layer, for MLPs and biases), or the 20 nearest in size, or both."""
    *earlier, last = read(name)
    model = bench.model

    def like(one: Any, layer: bool = True) -> list[str]:
        return [
            part
            for part in _alike_parts(model, one)
            if not layer or read(part)[0].layer == one.layer
        ]

    dot = "" if last.input is None else f".{last.input}"
    if earlier or dot:
        step = model.find((*earlier, last)[1 if earlier else 0].part).step
        first = (
            [part for part in like(earlier[0], against != "size") if model.find(part).step < step]
            if earlier
            else []
        )
        between = [
            [f"{part}.{one.input}" if one.input else part for part in like(one)]
            for one in earlier[1:]
        ]
        ends = [end + dot for end in like(last) or [str(last.part)]]
        found = {
            join(*chain): chain[0]
            for chain in product(*([first] if earlier else []), *between, ends)
        }
    else:
        found = {part: part for part in like(last, against != "size" and last.kind in "HN")}
    if against == "layers":
        return list(found)
    own = _size(bench, str((*earlier, last)[0].part))
    away = {
        one: abs(_size(bench, str(read(source)[0].part)) - own) for one, source in found.items()
    }
    return sorted(found, key=lambda one: away[one])[:21]


def _size(bench: Bench, part: str) -> float:
    """How much a part writes in the untouched model: the logarithm of its norm."""
    sizes: dict[str, float] = vars(bench).setdefault("sizes", {})
    if part not in sizes:
        sizes[part] = float(bench.base.part(part).norm().clamp_min(1e-30).log())
    return sizes[part]


class Attribution(NamedTuple):
    """`values[i]` says how much replacing `names[i]` would change the measure. **Source**: see `attribution`."""

    names: tuple[str, ...]
    values: Float[Tensor, " head"]


@public
@ids(least=2)
@must(_repeats)
@must(_enough)
@must(_alike)
@torch.inference_mode(False)
@torch.enable_grad()
def attribution(
    model: AnyModel,
    tokens: Int[Tensor, "batch pos"] | Repeated,
    *,
    how: Literal["gradient", "integrated", "patching"] = "gradient",
    fill: Source = "resample",
    measure: Literal["loss"] | Callable[[Run], Tensor] = "loss",
    points: Count = 4,
) -> Attribution:
    r"""What the mean of a measure would change if each head by itself were replaced as in `effect`: guessed, or done.

    `"gradient"`: $\nabla_z m \cdot (z' - z)$, one forward and one backward pass for all heads. `"integrated"`: the gradient's
    mean at `points` mixtures in which all heads have gone a share of the way to their $z'$. `"patching"`: one forward pass a
    head, which is the truth. **Error**: of a guess, that of a straight line; a saturated head can get the wrong sign.
    **Source**: attribution patching (Nanda 2023; Syed et al. 2023), integrated gradients (Sundararajan et al. 2017).
    """
    bench = Bench(model, tokens, fill, measure)
    names, value = bench.model.head_names, bench.model
    if how == "patching":
        whole, *others = bench.each([(), *((name,) for name in names)], "heads").mean(1)
        return Attribution(names, torch.stack(others) - whole)
    subs = [sub for sub in value.sublayers if isinstance(sub.inside, Heads)]
    own = {sub.name: bench.base.gathered[sub.name] for sub in subs}
    other = {"zero": torch.zeros_like, "mean": lambda z: z.mean(0, keepdim=True)}.get(
        fill if isinstance(fill, str) else "", bench.fill
    )
    less = {name: other(bench.source.gathered[name]) - z for name, z in own.items()}
    total = torch.zeros(len(names), dtype=value.W_E.dtype)
    shares = [(i + 0.5) / points for i in range(points)] if how == "integrated" else [0.0]
    for share in shares:
        moved = {name: torch.zeros_like(z, requires_grad=True) for name, z in less.items()}

        def edit(
            sub: Any, z: Tensor, share: float = share, moved: dict[str, Tensor] = moved
        ) -> Tensor:
            if sub.name not in moved:
                return z
            aim = own[sub.name] + share * less[sub.name]
            return z + (aim - z).detach() + moved[sub.name]

        run = value.run(bench.tokens, edit=edit, grad=True)
        found = bench.measured(run).mean()
        if not found.requires_grad:
            raise ValueError(
                "measure= gave numbers that have no gradient; expected a differentiable function of run.logits, because it is followed back to the heads. Leave out detach() and no_grad(), or ask how='patching'."
            )
        slopes = torch.autograd.grad(found, list(moved.values()))
        change = [
            (slope * less[name]).sum((0, 2, 3)) for name, slope in zip(moved, slopes, strict=True)
        ]
        total += torch.cat(change).cpu() / len(shares)
    return Attribution(names, total)


@public
def paths(
    model: AnyModel,
    kind: Literal["Q", "K", "V"],
    *,
    into: str | None = None,
    out_of: str | None = None,
) -> tuple[str, ...]:
    """All wires `"L0H1->L1H3.K"` of one kind between heads of different layers, to give to `without=`.

    `into` and `out_of` keep those that end or begin at one head. Without all of a kind, later heads read the stream without earlier
    heads at that one input. **Source**: "A Mathematical Framework for Transformer Circuits"; cutting wires is this book's.
    """
    value = anatomy(model)
    for head in {into, out_of} - {None} - {*value.head_names}:
        raise unknown("head", str(head), value.head_names)
    heads = [(value.find(name).step, name) for name in value.head_names]
    return tuple(
        join(earlier, f"{later}.{kind}")
        for first, earlier in heads
        for second, later in heads
        if first < second and into in (None, later) and out_of in (None, earlier)
    )
