"""What an ablation changes: a measure before and after it, next to the same for random controls.

`effect` runs the model again without some parts, inputs, wires or paths. The controls are sets of
names of the same kind, which are drawn at random. `attribution` estimates the same for every head
at once, from gradients.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from torch import Tensor
from tqdm import tqdm

from circuitkit.ablation import Fill, names_of, replacement_of, run, run_with
from circuitkit.bridge import Model
from circuitkit.checks import checked, require_at_least, require_bridge, require_finite, shown
from circuitkit.cuts import covers, resolve
from circuitkit.intervention import Replacement
from circuitkit.names import Side, join, parse, unknown
from circuitkit.parts import (
    Recording,
    head_names,
    neuron_names,
    neurons_in,
    parts_of,
    step_of,
)
from circuitkit.reading import attention_layers, converted_neurons, neurons_of
from circuitkit.rows import (
    Repeated,
    Rows,
    Text,
    read_rows,
    require_repeating,
    require_two_positions,
    second_pass,
    token_losses,
)
from circuitkit.runs import Run
from circuitkit.tables import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Effect", "attribution", "effect", "wires"]
Measure = Literal["loss", "accuracy"] | Callable[[Run], Tensor]


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

    Notes
    -----
    Source: see `effect`.
    """

    done: str
    measure: str
    sets: tuple[tuple[str, ...], ...]
    values: Float[Tensor, "set row"]

    @property
    def change(self) -> float:
        """The mean over rows of the measure after the change minus before it."""
        return float((self.values[1] - self.values[0]).mean())

    @property
    def interval(self) -> tuple[float, float]:
        """A 95% interval of the change, paired over rows; NaN for a single row."""
        differences = self.values[1] - self.values[0]
        # one row has no standard deviation
        deviation = differences.std() if len(differences) > 1 else torch.nan
        half_width = 1.96 * float(deviation) / len(differences) ** 0.5
        return self.change - half_width, self.change + half_width

    @property
    def controls(self) -> Float[Tensor, " control"]:
        """The mean over rows of the measure after the change to each control, minus before it."""
        return (self.values[2:] - self.values[0]).mean(1)

    @property
    def rank(self) -> int:
        """1 plus the number of controls whose change is at least as large, up or down.

        A control that changes the measure by exactly as much counts against the set. Without
        controls the rank is 1, too, so look at `len(controls)` first.
        """
        return 1 + int((self.controls.abs() >= abs(self.change)).sum())

    def to_frame(self) -> "pd.DataFrame":
        """One row for the change and one for each control, with the means over rows."""
        import pandas as pd  # takes half a second, and computing needs no frame

        means = self.values.mean(1)
        names = [", ".join(names) for names in self.sets]
        index = ["given", *(f"control {number}" for number in range(1, len(names)))]
        frame = pd.DataFrame({"names": names, "after": means[1:].tolist()}, index=index)
        frame.insert(1, "before", float(means[0]))
        frame["change"] = frame["after"] - frame["before"]
        return frame

    def __repr__(self) -> str:
        before, after = self.values[:2].mean(1).tolist()
        (low, high), n_rows, controls = self.interval, self.values.shape[1], self.controls
        spread = f" [{low:+.2f}, {high:+.2f}] over {n_rows} rows" if n_rows > 1 else " on one row"
        text = (
            f"{self.done}: {self.measure} {before:.2f} -> {after:.2f}, {self.change:+.2f}{spread}"
        )
        if not len(controls):
            return f"{text}; no random controls"
        return (
            f"{text}; {len(controls)} random controls: {controls.median():+.2f} "
            f"({controls.min():+.2f} to {controls.max():+.2f}), rank {self.rank} of {1 + len(controls)}"
        )


# One measurement


def measure_without(
    base: Run,
    names: Sequence[str],
    replacement: Replacement,
    measure: Measure,
    repeated: Repeated | None,
) -> Float[Tensor, " row"]:
    """The measure on each row after names have been replaced; `base` is the untouched run."""
    if not names:
        return measured(base, measure, repeated)
    cuts = resolve(base.model, names)
    with torch.no_grad():
        return measured(run_with(base.model, base.rows, cuts, replacement), measure, repeated)


def measured(result: Run, measure: Measure, repeated: Repeated | None) -> Float[Tensor, " row"]:
    """A measure on each row of a run; on the second pass of repeated rows."""
    logits, rows = result.logits, result.rows
    if not isinstance(measure, str):
        value = measure(result)
        is_row = isinstance(value, Tensor) and value.shape == (len(logits),)
        if not is_row or value.is_complex() or not bool(torch.isfinite(value.detach()).all()):
            padding = " Logits are NaN at padding, where a text has ended." * rows.is_padded
            raise ValueError(
                f"measure returned {shown(value)}. It must return {len(logits)} finite numbers, one "
                f"for each row, such as lambda run: run.last_logits[:, 5].{padding}"
            )
        return value if value.is_floating_point() else value.to(logits.dtype)
    require_finite(rows.select(logits), "The output of the model")
    if repeated is not None:
        loss, accuracy = second_pass(logits, repeated)
        return loss if measure == "loss" else accuracy
    if measure == "loss":
        return rows.means(token_losses(logits, rows.tokens))
    is_right = logits[:, :-1].argmax(-1) == rows.tokens[:, 1:]
    return rows.means(is_right.to(logits.dtype))


@checked
def effect(
    model: Model,
    tokens: Text,
    without: str | Iterable[str],
    *,
    fill: Fill = "zero",
    patch: Text | Run | None = None,
    measure: Measure = "loss",
    draws: int = 20,
    seed: int = 0,
) -> Effect:
    """Measure what replacing parts, inputs, wires or paths changes, next to random controls.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, a list of texts of any lengths, token ids `[batch, pos]`, or `Repeated` rows
    without : what is replaced, all at once
    fill, patch : by what, as in `run`: by zero, by values of the untouched model on the other rows, or
        by its values on the tokens of `patch`
    measure : `"loss"` in nats or `"accuracy"`, on the second pass of `Repeated` rows, otherwise on all
        tokens of each text; or a function of the `Run` that returns one number for each row
    draws : how many controls are drawn, of names of the same kind in the same layers; fewer if there
        are not as many. The controls of a wire or a path may have another writer and another reader.
        A name that another one covers has no controls.
    seed : of the controls

    Returns
    -------
    An `Effect` with `change`, `interval`, `controls` and `rank`; printing it gives one line.

    Raises
    ------
    ValueError : for names that the model does not have, and for what `run` refuses

    Notes
    -----
    A layer has one MLP and one bias, so their controls come from other layers. The interval is that of
    a normal mean over rows. `joblib.parallel_config` moves the runs to other processes or machines;
    threads would share the hooks of the model, so in threads one set is measured after another.
    Source: Wang et al. 2022, "Interpretability in the Wild", patching; the controls are this book's.

    Examples
    --------
    >>> from circuitkit.rows import repeated_tokens
    >>> from circuitkit_book.induction_by_hand import build_induction_model
    >>> rows = repeated_tokens(20, 8)
    >>> effect(build_induction_model(20, 16), rows, "L0H0->L1H0.K", measure="accuracy").change < -0.9
    True
    """
    require_at_least(0, draws=draws)
    rows, repeated = rows_to_measure(model, tokens, measure)
    given = list(dict.fromkeys(join(*parse(name)) for name in names_of(without)))
    if not given:
        raise ValueError("Name what is replaced in without=, such as without='L0H1'.")
    base = run(model, rows)
    replacement = replacement_of(model, rows, fill, patch)
    chains = [parse(name) for name in given]
    alone = [join(*chain) for chain in chains if not any(covers(other, chain) for other in chains)]
    sets = [given, *random_controls(model, alone, draws, seed)]
    jobs = [
        delayed(measure_without)(base, names, replacement, measure, repeated)
        for names in [[], *sets]
    ]
    # threads would add their hooks to the same model
    backend, _ = get_active_backend()
    n_jobs = 1 if getattr(backend, "supports_sharedmem", False) else None
    values: Any = Parallel(n_jobs)(tqdm(jobs, desc="effect", delay=5, leave=False))
    what = ", ".join(given)
    if len(given) > 3:
        what = f"{len(given)} {'wires' if '->' in given[0] else 'parts'}"
    how = fill if patch is None else "from other tokens"
    label = measure if isinstance(measure, str) else "measure"
    names = tuple(tuple(names) for names in sets)
    return Effect(f"without {what} ({how})", label, names, torch.stack(list(values)))


def rows_to_measure(model: Model, tokens: Text, measure: Measure) -> tuple[Rows, Repeated | None]:
    """What a tool reads; and the repeated rows, if it was given such, because they have two passes."""
    rows = read_rows(model, tokens)
    if isinstance(tokens, Repeated):
        require_repeating(tokens)
        return rows, tokens
    if isinstance(measure, str):
        require_two_positions(rows)
    return rows, None


# Random controls


def random_controls(model: Model, names: Sequence[str], draws: int, seed: int) -> list[list[str]]:
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
    wanted = min(draws, how_many_controls(names, pools))
    for _ in range(20 * draws):
        if len(sets) > wanted:
            break
        chosen: list[str] = []
        for pool in pools:
            order = torch.randperm(len(pool), generator=generator).tolist()
            chosen += [pool[i] for i in order if pool[i] not in chosen][:1]
        if len(chosen) == len(names):
            sets.setdefault(frozenset(chosen), chosen)
    return list(sets.values())[1:]


def how_many_controls(names: Sequence[str], pools: Sequence[list[str]]) -> int:
    """How many different sets take one name from each pool, without the set of the names.

    Two pools are equal or share no name.
    """
    sizes = Counter(tuple(pool) for pool in pools)
    n_sets = math.prod(math.comb(len(pool), count) for pool, count in sizes.items())
    has_given = all(name in pool for name, pool in zip(names, pools, strict=True))
    return n_sets - int(has_given)


def candidates(model: Model, name: str) -> list[str]:
    """Every name that is like a name; the name itself is one of them.

    A part      "L0H1"               -> the heads of layer 0
    An input    "L1H3.K"             -> the same input of the heads of layer 1
    A wire      "L0H1->L1H3.K"       -> from any head of layer 0 to the keys of any head of layer 1
    A path      "embed->L0H1->L1H3"  -> through any head of layer 0 into any head of layer 1
    """
    chain = parse(name)
    is_part = len(chain) == 1 and chain[0].side is None
    # a layer has one MLP and one bias, so these come from any layer
    any_layer = is_part and chain[0].kind not in ("H", "N")
    places = []
    for part in chain:
        if part.kind == "N":
            neurons = neurons_of(model, part.layer)
            terms = 1 if part.term is None else len(neurons.terms)
            alike = neuron_names(part.layer or 0, range(len(neurons.W_out)), terms)
        else:
            alike = [
                other
                for other in parts_of(model, neurons=part.kind != "MLP")
                if other.kind == part.kind and (any_layer or other.layer == part.layer)
            ]
        places.append([replace(other, side=part.side) for other in alike] or [part])
    return [join(*alike) for alike in product(*places)]


@checked
def wires(model: Model, side: Side, *, into: str | None = None) -> tuple[str, ...]:
    """List all wires into one side, Q, K or V, between attention heads of different layers.

    Parameters
    ----------
    model : a `TransformerBridge`
    side : the input that the wires feed: `"Q"`, `"K"` or `"V"`
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
    heads = head_names(model)
    if into is not None and into not in heads:
        raise unknown("head", into, heads)
    steps = {head: step_of(model, parse(head)[0]) for head in heads}
    result = []
    for writer in heads:
        for reader in heads if into is None else [into]:
            if steps[writer] < steps[reader]:
                result.append(f"{writer}->{reader}.{side}")
    return tuple(result)


# Estimates from gradients


class WithOffset(Replacement):
    """A replacement that adds what it reads from another recording."""

    def __call__(self, now: Tensor, value_in: Callable[[Recording], Tensor]) -> Tensor:
        """The value in this run plus its offset."""
        return now + value_in(self.source) if self.source is not None else now


@checked
@torch.inference_mode(False)
@torch.enable_grad()
def attribution(
    model: Model,
    tokens: Text,
    *,
    fill: Fill = "zero",
    patch: Text | Run | None = None,
    measure: Literal["loss"] | Callable[[Run], Tensor] = "loss",
    neurons: bool = False,
) -> Table:
    r"""Estimate for every head what a measure would change if the head's z were replaced.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, a list of texts of any lengths, token ids `[batch, pos]`, or `Repeated` rows
    fill, patch, measure : as in `effect`; the measure must be differentiable
    neurons : whether the neurons of all MLPs follow the heads; the z of a neuron is its activation,
        times the other branch in a gated MLP

    Returns
    -------
    A `Table` with one value for each head or neuron: the estimated change of the mean over rows.

    Raises
    ------
    ValueError : for a measure without a gradient, and a model without heads

    Notes
    -----
    Formula: $\nabla_z m \cdot (z' - z)$, where gradients flow through all later heads and layers, and z'
    is the replacement in the untouched model. A head that the measure does not depend on gets 0. The
    error is that of a straight line: a saturated softmax can give an estimate of the wrong sign.
    `effect` measures the change itself.
    Source: attribution patching (Nanda 2023; Syed et al. 2023).

    Examples
    --------
    >>> import circuitkit as ck
    >>> attribution(ck.load_model("two-layer"), torch.arange(12).view(2, 6)).values.shape
    torch.Size([8])
    """
    rows, repeated = rows_to_measure(model, tokens, measure)
    heads = head_names(model)
    if not heads:
        raise ValueError("This model has no attention heads, so there is nothing to attribute to.")
    base = run(model, rows)
    replacement = replacement_of(model, rows, fill, patch)
    # the slope by an offset of zero is the slope by z, also where weights have no gradient
    offsets = Recording(model, base.recording.hook_names)
    sites = []  # a layer, how its z is read, and the offset of this z
    for layer in attention_layers(model):
        hook = base.recording.hook_names[f"blocks.{layer}.attn.hook_z"]
        offsets.values[hook] = torch.zeros_like(base.recording.values[hook], requires_grad=True)
        sites.append((layer, Recording.heads_z, offsets.values[hook]))
    names = [*heads]
    for layer in attention_layers(model) if neurons else ():
        if neurons_of(model, layer) is not None:
            offset = neuron_offset(base.recording, offsets, layer)
            sites.append((layer, Recording.neurons_z, offset))
            names += [str(name) for name in neurons_in(model, layer)]
    result = run_with(model, rows, resolve(model, names), WithOffset("offset", offsets))
    mean = measured(result, measure, repeated).mean()
    slopes: Any = [None]
    if mean.requires_grad:
        leaves = [offset for _, _, offset in sites]
        slopes = torch.autograd.grad(mean, leaves, allow_unused=True)
    if all(slope is None for slope in slopes):
        raise ValueError(
            "The measure has no gradient: no part changes it, or it uses detach() or no_grad(), or "
            "it calls the model. Give a differentiable function of the run, such as "
            "lambda run: run.logits[:, -1, 5]."
        )
    estimates = []
    for (layer, z_in, offset), slope in zip(sites, slopes, strict=True):
        # an early measure, such as a pattern, does not depend on later heads: their slope is zero
        slope = torch.zeros_like(offset) if slope is None else slope
        z = z_in(base.recording, layer)
        change = replacement(z, partial(z_in, layer=layer)) - z
        product = slope.view_as(z) * change  # [batch, pos, head, d_head] or [batch, pos, neuron]
        estimates.append(product.flatten(3).sum((0, 1, 3)) if z.ndim == 4 else product.sum((0, 1)))
    kind = "head or neuron" if neurons else "head"
    values = torch.cat(estimates).cpu()
    return Table(values, {kind: tuple(names)}, "estimated change of the measure")


def neuron_offset(base: Recording, offsets: Recording, layer: int) -> Tensor:
    """Put an offset of zero for what a layer's neurons gather into a recording, and return it."""
    if converted_neurons(base.model, layer) is not None:
        offset = torch.zeros_like(base.neurons_z(layer), requires_grad=True)
        offsets.neuron_z[layer] = offset
        return offset
    hook = base.hook_names[f"blocks.{layer}.mlp.out.hook_in"]
    stream = base.hook_names[f"blocks.{layer}.hook_in"]
    offsets.values[hook] = torch.zeros_like(base.values[hook], requires_grad=True)
    offsets.values[stream] = base.values[stream]
    return offsets.values[hook]
