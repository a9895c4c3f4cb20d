"""What an ablation changes: a measure before and after it, next to the same for random controls.

`effect` runs the model again without some parts, inputs, wires or paths. The controls are sets of
names of the same kind, which are drawn at random. `attribution` estimates the same for every head
at once, from gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from torch import Tensor
from tqdm.auto import tqdm

from circuitkit.ablation import (
    Replacement,
    Run,
    require_different_rows,
    run,
    run_with,
)
from circuitkit.checks import checked, require_at_least, require_bridge, shown, to_tokens
from circuitkit.cuts import resolve
from circuitkit.names import SIDES, Name, Side, join, parse, unknown
from circuitkit.parts import head_names, in_layer, n_heads, part_names, step_of
from circuitkit.rows import (
    Repeated,
    require_repeating,
    require_two_positions,
    second_pass,
    token_losses,
)
from circuitkit.tables import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Effect", "attribution", "effect", "wires"]

Measure = Literal["loss", "accuracy"] | Callable[[Run], Tensor]
Source = Literal["zero", "mean", "resample"] | Int[Tensor, "batch pos"]


@dataclass(frozen=True, eq=False)
class Effect:
    """A measure on each row before and after a change, and after the same change to random controls.

    Parameters
    ----------
    done : what was done, in words
    measure : the name of the measure
    sets : the names that were given, then those of each control
    values : `[2 + control, row]`, the measure of the whole model, after the change, and after the
        change to each control
    draws : how many controls were asked for

    Notes
    -----
    Source: see `effect`.
    """

    done: str
    measure: str
    sets: tuple[tuple[str, ...], ...]
    values: Float[Tensor, "set row"]
    draws: int = 20

    @property
    def change(self) -> float:
        """The mean over rows of the measure after the change minus before it."""
        return float((self.values[1] - self.values[0]).mean())

    @property
    def interval(self) -> tuple[float, float]:
        """A 95% interval of the change, paired over rows; NaN for a single row."""
        differences = self.values[1] - self.values[0]
        if len(differences) == 1:
            return float("nan"), float("nan")
        half_width = 1.96 * float(differences.std()) / len(differences) ** 0.5
        return self.change - half_width, self.change + half_width

    @property
    def controls(self) -> Float[Tensor, " control"]:
        """The mean over rows of the measure after the change to each control."""
        return self.values[2:].mean(1)

    @property
    def rank(self) -> int:
        """1 if no control changes the measure as much; with `keep`, if no control preserves it as well.

        Without controls it is 1, too, so look at `len(controls)` first.
        """
        change, *control_changes = (self.values[1:].mean(1) - self.values[0].mean()).abs()
        if self.done.startswith("keeping"):
            better = [control <= change for control in control_changes]
        else:
            better = [control >= change for control in control_changes]
        return 1 + sum(map(int, better))

    def to_frame(self) -> "pd.DataFrame":
        """One row for the change and one for each control, with the means over rows."""
        import pandas as pd  # takes half a second, and computing needs no frame

        before = float(self.values[0].mean())
        rows = [
            {"names": ", ".join(names), "before": before, "after": after, "change": after - before}
            for names, after in zip(self.sets, self.values[1:].mean(1).tolist(), strict=True)
        ]
        labels = ["given", *(f"control {number}" for number in range(1, len(rows)))]
        return pd.DataFrame(rows, index=labels)

    def __repr__(self) -> str:
        before, after = self.values[:2].mean(1).tolist()
        text = f"{self.done}: {self.measure} {before:.2f} -> {after:.2f}, {self.change:+.2f}"
        n_rows = self.values.shape[1]
        if n_rows > 1:
            low, high = self.interval
            text += f" [{low:+.2f}, {high:+.2f}] over {n_rows} rows"
        else:
            text += " on one row, so without an interval"
        controls = self.controls
        if not self.draws:
            return f"{text}; no controls were drawn"
        if not len(controls):
            return f"{text}; there are no other names of this kind, so there is no control"
        return (
            f"{text}; {len(controls)} random controls: {controls.median():.2f} "
            f"({controls.min():.2f} to {controls.max():.2f}), rank {self.rank} of {1 + len(controls)}"
        )


# One measurement


@dataclass
class Experiment:
    """A model on some rows, the values that replace others, and a measure."""

    model: Any
    rows: Int[Tensor, "batch pos"] | Repeated
    fill: Source
    measure: Measure
    base: Run = field(init=False)
    replacement: Replacement = field(init=False)

    def __post_init__(self) -> None:
        tokens = self.rows.tokens if isinstance(self.rows, Repeated) else self.rows
        self.base = run(self.model, tokens)
        # the values of the untouched model replace those of the changed one
        source, how = self.base.recording, self.fill
        if isinstance(self.fill, Tensor):
            source, how = run(self.model, self.fill).recording, "patch"
        self.replacement = Replacement(str(how), source)

    @torch.no_grad()
    def without(self, names: Sequence[str]) -> Float[Tensor, " row"]:
        """The measure on each row after names have been replaced."""
        if not names:
            return self.measured(self.base)
        cuts = resolve(self.model, names)
        return self.measured(run_with(self.model, self.base.tokens, cuts, self.replacement))

    def measured(self, result: Run) -> Float[Tensor, " row"]:
        """The measure on each row of a run."""
        if not isinstance(self.measure, str):
            return measured_by_user(self.measure, result)
        logits = result.logits
        if isinstance(self.rows, Repeated):
            loss, accuracy = second_pass(logits, self.rows)
            return loss if self.measure == "loss" else accuracy
        if self.measure == "loss":
            return token_losses(logits, result.tokens).mean(1)
        is_right = logits[:, :-1].argmax(-1) == result.tokens[:, 1:]
        return is_right.to(logits.dtype).mean(1)


def measured_by_user(measure: Callable[[Run], Tensor], result: Run) -> Float[Tensor, " row"]:
    """What a user's function gives for a run, if that is one finite number for each row."""
    n_rows = len(result.tokens)
    value = measure(result)
    is_row = isinstance(value, Tensor) and value.shape == (n_rows,) and not value.is_complex()
    if not is_row or not bool(torch.isfinite(value.detach()).all()):
        raise ValueError(
            f"measure returned {shown(value)}. It must return {n_rows} finite numbers, one for each "
            "row, such as lambda run: run.logits[:, -1, 5]."
        )
    return value if value.is_floating_point() else value.to(result.logits.dtype)


@checked
def effect(
    model: Any,
    tokens: str | Sequence[str] | Int[Tensor, "*batch pos"] | Repeated,
    without: str | Sequence[str] = (),
    *,
    keep: str | Sequence[str] = (),
    fill: Source = "zero",
    measure: Measure = "loss",
    draws: int = 20,
    seed: int = 0,
) -> Effect:
    """Measure what replacing parts, inputs, wires or paths changes, next to random controls.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, texts of one length, token ids `[batch, pos]`, or `Repeated` rows
    without : what is replaced, all at once (is it necessary?)
    keep : what is not replaced, while all others of its kind are (is it enough?): heads, MLPs, neurons
        or other parts, or wires between heads with a letter, such as `"L0H1->L1H3.K"`. For a head, all
        other heads of the model are replaced, and for this wire all other wires into keys.
    fill : by what, as in `run`: `"zero"`; the untouched model's `"mean"` over rows; its values on the row
        before, `"resample"`; or its values on other rows, given as token ids `[batch, pos]`
    measure : `"loss"` in nats or `"accuracy"`, on the second pass of `Repeated` rows, otherwise on all
        positions; or a function of the `Run` that returns one number for each row
    draws : how many controls are drawn, of names of the same kind in the same layers; fewer if there
        are not as many
    seed : of the controls

    Returns
    -------
    An `Effect` with `change`, `interval`, `controls` and `rank`; printing it gives one line.

    Raises
    ------
    ValueError : for names that the model does not have, both or none of `without` and `keep`, and a
        `fill` from other rows if there is only one

    Notes
    -----
    A layer has one MLP and one bias, so their controls come from other layers. The interval is that of
    a normal mean over rows. `joblib.parallel_config` moves the runs to other processes or machines;
    threads would share the hooks of the model, so in threads one set is measured after another.
    Source: Wang et al. 2022, "Interpretability in the Wild", patching; the controls are this book's.

    Examples
    --------
    >>> from circuitkit.handmade import build_induction_model
    >>> from circuitkit.rows import repeated_tokens
    >>> rows = repeated_tokens(20, 8)
    >>> effect(build_induction_model(20, 16), rows, "L0H0->L1H0.K", measure="accuracy").change < -0.9
    True
    """
    require_at_least(0, draws=draws)
    rows = rows_of(model, tokens, measure)
    given = normalized(without) + normalized(keep)
    require_choices(without, keep, fill, rows)
    experiment = Experiment(model, rows, fill, measure)
    everything = all_of_kind(model, given) if keep else []
    for name in given:
        if keep and name not in everything:
            raise unknown("part or wire", name, everything)
    sets = [given, *random_controls(model, given, draws, seed)]
    replaced = [
        [name for name in everything if name not in names] if keep else names for names in sets
    ]
    jobs = tqdm([[], *replaced], desc="effect", delay=5, leave=False)
    # threads would add their hooks to the same model
    backend, _ = get_active_backend()
    n_jobs = 1 if getattr(backend, "supports_sharedmem", False) else None
    values: Any = Parallel(n_jobs)(delayed(experiment.without)(names) for names in jobs)
    done = description(given, keep=bool(keep), total=len(everything), fill=fill)
    label = measure if isinstance(measure, str) else "measure"
    names = tuple(tuple(names) for names in sets)
    return Effect(done, label, names, torch.stack(list(values)), draws)


def rows_of(model: Any, tokens: Any, measure: Measure) -> Int[Tensor, "batch pos"] | Repeated:
    """Rows on the model's device: repeated ones, or token ids from a text."""
    if isinstance(tokens, Repeated):
        require_repeating(tokens)
        return tokens._replace(tokens=to_tokens(model, tokens.tokens))
    rows = to_tokens(model, tokens)
    if isinstance(measure, str):
        require_two_positions(rows)
    return rows


def normalized(names: str | Sequence[str]) -> list[str]:
    """Names as they are printed, each once."""
    names = [names] if isinstance(names, str) else names
    return list(dict.fromkeys(join(*parse(name)) for name in names))


def require_choices(without: Any, keep: Any, fill: Any, rows: Any) -> None:
    """Raise a `ValueError` for choices that contradict each other or the rows."""
    if bool(without) == bool(keep):
        raise ValueError(
            "Give names in one of two places: without= replaces them, keep= replaces all others."
        )
    for name in normalized(keep):
        chain = parse(name)
        is_part = len(chain) == 1 and chain[0].side is None and chain[0].kind != "unembed"
        ends_in_input = len(chain) == 2 and chain[1].side is not None
        joins_heads = {part.kind for part in chain} == {"H"}
        if not is_part and not (ends_in_input and joins_heads):
            raise ValueError(
                f"keep cannot take {name!r}, because it has no list of all others of this kind. Give "
                "parts such as 'L0H1', or wires from head to head such as 'L0H1->L1H3.K'."
            )
    tokens = rows.tokens if isinstance(rows, Repeated) else rows
    if isinstance(fill, Tensor) and fill.shape != tokens.shape:
        raise ValueError(
            f"fill has the shape {tuple(fill.shape)}; rows of the shape of tokens are needed, "
            f"{tuple(tokens.shape)}."
        )
    require_different_rows(tokens, fill)


def description(names: Sequence[str], *, keep: bool, total: int, fill: Source) -> str:
    """What was done, in words: `without L0H1 (zero)`."""
    what = ", ".join(names)
    if len(names) > 3:
        what = f"{len(names)} {'wires' if '->' in names[0] else 'parts'}"
    how = fill if isinstance(fill, str) else "from other rows"
    return f"keeping {what} of {total} ({how})" if keep else f"without {what} ({how})"


# Random controls


def random_controls(model: Any, names: Sequence[str], draws: int, seed: int) -> list[list[str]]:
    """Different sets of names like the given ones; in a set, no name comes twice."""
    pools = [candidates(model, name) for name in names]
    without_given = [[name for name in pool if name not in names] for pool in pools]
    # where the given names leave too few others, a control may hold some of them, but never all
    pools = [
        rest if len(rest) >= pools.count(pool) else pool
        for pool, rest in zip(pools, without_given, strict=True)
    ]
    generator = torch.Generator().manual_seed(seed)
    sets = {frozenset(names): list(names)}
    for _ in range(20 * draws):
        chosen: list[str] = []
        for pool in pools:
            order = torch.randperm(len(pool), generator=generator).tolist()
            chosen += [pool[i] for i in order if pool[i] not in chosen][:1]
        if len(chosen) == len(names):
            sets.setdefault(frozenset(chosen), chosen)
        if len(sets) > draws:
            break
    return list(sets.values())[1:]


def candidates(model: Any, name: str) -> list[str]:
    """Every name that is like a name.

    A part      "L0H1"               -> the other heads of layer 0
    An input    "L1H3.K"             -> the same input of the heads of its layer
    A wire      "L0H1->L1H3.K"       -> wires of the same kind between the same layers
    A path      "embed->L0H1->L1H3"  -> the same, with other heads of layer 0 in its middle
    """
    *before, target = parse(name)
    if not before and target.side is None:
        # a layer has one MLP and one bias, so these come from any layer
        return same_kind(model, target, same_layer=target.kind in ("H", "N"))

    chains: list[list[str]] = []  # the possible names at each place of the chain
    if before:
        first_reader = (*before, target)[1].part
        step = step_of(model, first_reader)
        writers = same_kind(model, before[0])
        chains.append([part for part in writers if step_of(model, parse(part)[0]) < step])
    for middle in before[1:]:
        side = f".{middle.side}" if middle.side else ""
        chains.append([f"{part}{side}" for part in same_kind(model, middle)])
    side = f".{target.side}" if target.side else ""
    targets = same_kind(model, target) or [str(target.part)]
    chains.append([f"{part}{side}" for part in targets])
    return [join(*chain) for chain in product(*chains)]


def same_kind(model: Any, part: Name, same_layer: bool = True) -> list[str]:
    """The parts that are what a part is: heads for a head, whole neurons for a neuron."""
    names = []
    for text in part_names(model, neurons=part.kind != "MLP"):
        (name,) = parse(text)
        if name.kind != part.kind or (same_layer and name.layer != part.layer):
            continue
        if name.kind == "N" and part.term is None:
            name = replace(name, term=None)
        names.append(str(name))
    return list(dict.fromkeys(names))


def all_of_kind(model: Any, names: Sequence[str]) -> list[str]:
    """All wires between heads into the inputs that are named, and all parts of the kinds that are."""
    chains = [parse(name) for name in names]
    ends = {chain[-1].side for chain in chains if len(chain) > 1}
    result = [wire for side in sorted(SIDES) if side in ends for wire in wires(model, side)]
    for chain in chains:
        if len(chain) == 1:
            result += same_kind(model, chain[0], same_layer=False)
    return list(dict.fromkeys(result))


def wires(
    model: Any,
    kind: Side,
    *,
    into: str | None = None,
) -> tuple[str, ...]:
    """List all wires of one kind between attention heads of different layers.

    Parameters
    ----------
    model : a `TransformerBridge`
    kind : the input that the wires feed
    into : a head at which the wires end; None for all heads

    Returns
    -------
    Names such as `"L0H1->L1H3.K"`, for `run(model, tokens, without=...)` and `effect`.

    Raises
    ------
    ValueError : for a head that the model does not have

    Notes
    -----
    Source: this book; the literature calls them edges.

    Examples
    --------
    >>> import circuitkit as ck
    >>> wires(ck.load_model("two-layer"), "K", into="L1H3")[0]
    'L0H0->L1H3.K'
    """
    require_bridge(model)
    if kind not in ("Q", "K", "V"):
        raise ValueError(f"A wire feeds the input 'Q', 'K' or 'V' of a head, not {kind!r}.")
    heads = head_names(model)
    if into is not None and into not in heads:
        raise unknown("head", into, heads)
    steps = {head: step_of(model, parse(head)[0]) for head in heads}
    result = []
    for writer in heads:
        for reader in heads if into is None else [into]:
            if steps[writer] < steps[reader]:
                result.append(f"{writer}->{reader}.{kind}")
    return tuple(result)


# Estimates from gradients


@checked
@torch.inference_mode(False)
@torch.enable_grad()
def attribution(
    model: Any,
    tokens: str | Sequence[str] | Int[Tensor, "*batch pos"] | Repeated,
    *,
    how: Literal["gradient", "integrated"] = "gradient",
    fill: Source = "zero",
    measure: Literal["loss"] | Callable[[Run], Tensor] = "loss",
    points: int = 4,
) -> Table:
    r"""Estimate for every head what a measure would change if the head's z were replaced.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, texts of one length, token ids `[batch, pos]`, or `Repeated` rows
    how : `"gradient"`, at the untouched model; or `"integrated"`, the mean gradient at `points` mixtures. In
        mixture i, from 0, every head's z is `(1 - a) z + a z'` with `a = (i + 1/2) / points`.
    fill, measure : as in `effect`; the measure must be differentiable
    points : the number of mixtures

    Returns
    -------
    A `Table` with one value for each head: the estimated change of the mean over rows.

    Raises
    ------
    ValueError : for a measure without a gradient, and a model without heads

    Notes
    -----
    Formula: $\nabla_z m \cdot (z' - z)$, where gradients flow through all later heads and layers, and z'
    is the replacement in the untouched model. A head that the measure does not depend on gets 0. The error is that of a straight line: a saturated softmax can
    give an estimate of the wrong sign. `effect` measures the change itself.
    Source: attribution patching (Nanda 2023; Syed et al. 2023); integrated gradients (Sundararajan et
    al. 2017).

    Examples
    --------
    >>> import circuitkit as ck
    >>> attribution(ck.load_model("two-layer"), torch.arange(12).view(2, 6)).values.shape
    torch.Size([8])
    """
    require_at_least(1, points=points)
    rows = rows_of(model, tokens, measure)
    require_choices("L0H0", (), fill, rows)
    if not head_names(model):
        raise ValueError("This model has no attention heads, so there is nothing to attribute to.")
    experiment = Experiment(model, rows, fill, measure)
    layers = [layer for layer in range(len(model.blocks)) if n_heads(model, layer)]
    base = {layer: experiment.base.recording.heads_z(layer) for layer in layers}
    change = {
        layer: experiment.replacement(z, lambda source, at=layer: source.heads_z(at)) - z
        for layer, z in base.items()
    }
    shares = [(i + 0.5) / points for i in range(points)] if how == "integrated" else [0.0]
    totals = {layer: torch.zeros(n_heads(model, layer)).to(base[layer]) for layer in layers}
    for share in shares:
        slopes = slopes_at(experiment, {i: base[i] + share * change[i] for i in layers})
        for layer, slope in slopes.items():
            # [batch, pos, head, d_head] -> [head]
            totals[layer] += (slope * change[layer]).sum((0, 1, 3)) / len(shares)
    values = torch.cat(list(totals.values())).cpu()
    return Table(values, {"head": tuple(head_names(model))}, "estimated change of the measure")


def slopes_at(
    experiment: Experiment, z: dict[int, Float[Tensor, "batch pos head d_head"]]
) -> dict[int, Float[Tensor, "batch pos head d_head"]]:
    """The gradient of the mean measure by what heads gathered, where all of them gathered this."""
    model = experiment.model
    offsets = {layer: torch.zeros_like(value, requires_grad=True) for layer, value in z.items()}

    def hooks() -> Iterator[tuple[str, Callable]]:
        for layer in z:

            def put_in(now: Tensor, hook: Any, layer: int = layer) -> Tensor:
                # the value is the wanted one, and gradients flow to earlier layers through `now`
                wanted = z[layer].view_as(now)
                return now + (wanted - now).detach() + offsets[layer].view_as(now)

            yield in_layer(layer, "attn.hook_z"), put_in

    with model.hooks(fwd_hooks=list(hooks())):
        nothing = resolve(model, [])
        result = run_with(model, experiment.base.tokens, nothing, experiment.replacement)
    mean = experiment.measured(result).mean()
    if not mean.requires_grad:
        raise ValueError(
            "The measure has no gradient: no head changes it, or it uses detach() or no_grad(). "
            "Give a differentiable function of the run, such as lambda run: run.logits[:, -1, 5]."
        )
    # an early measure, such as a pattern, does not depend on later heads: their slope is zero
    slopes = torch.autograd.grad(mean, list(offsets.values()), materialize_grads=True)
    return dict(zip(offsets, slopes, strict=True))
