"""What an ablation changes: a measure before and after it, next to the same for random controls.

`effect` runs the model again without some parts, inputs, wires or paths. The controls are sets of
names of the same kind, which are drawn at random. `attribution` estimates the same for every head
at once, from gradients.
"""

import math
from collections import Counter, defaultdict
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
from circuitkit.checks import (
    checked,
    require_at_least,
    require_bridge,
    require_finite,
    shown,
)
from circuitkit.cuts import all_but, covers, resolve
from circuitkit.intervention import Replacement
from circuitkit.names import SIDES, Side, join, parse, unknown
from circuitkit.parts import (
    Recording,
    head_names,
    heads_before,
    neuron_names,
    neurons_in,
    parts_of,
    step_of,
)
from circuitkit.reading import attention_layers, neurons_of
from circuitkit.rows import (
    Answer,
    Repeated,
    Text,
    answer_ids,
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
Measure = Literal["loss", "accuracy", "KL divergence", "logit difference"] | Callable[[Run], Tensor]
Answers = tuple[Answer, Answer]
PerRow = Float[Tensor, " row"]
MeasureOfRows = Callable[[Run], PerRow]


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
        columns = {"names": names, "before": float(means[0]), "after": means[1:].tolist()}
        frame = pd.DataFrame(columns, index=index)
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
    base: Run, names: Sequence[str], replacement: Replacement, measure: MeasureOfRows
) -> PerRow:
    """The measure on each row after names have been replaced; `base` is the untouched run."""
    cuts = resolve(base.model, names, everywhere=replacement.positions is None)
    with torch.no_grad():
        return measure(run_with(base.model, base.rows, cuts, replacement, base=base))


def measure_of(base: Run, tokens: Text, measure: Measure, answers: Answers | None) -> MeasureOfRows:
    """A measure on each row of a run, with what it needs besides the run."""
    if (measure == "logit difference") != (answers is not None):
        raise ValueError(
            "A logit difference is that of two answers: write measure='logit difference', "
            "answers=(' God', ' man'). Other measures take none."
        )
    if not isinstance(measure, str):
        return partial(own_measure, measure)
    if measure == "KL divergence":
        return partial(divergence, base)
    if answers is not None:
        ids = [base.rows.pick(answer_ids(base.model, base.rows, one), -1) for one in answers]
        return partial(logit_difference, ids)
    if isinstance(tokens, Repeated):
        require_repeating(tokens)
    else:
        require_two_positions(base.rows)
    return partial(loss_or_accuracy, measure, tokens)


def own_measure(measure: Callable[[Run], Tensor], result: Run) -> PerRow:
    """The numbers of a user's function, one for each row."""
    value, n_rows = measure(result), len(result.tokens)
    is_row = isinstance(value, Tensor) and value.shape == (n_rows,)
    if not is_row or value.is_complex() or not bool(torch.isfinite(value.detach()).all()):
        padding = " Logits are NaN at padding, where a text has ended." * result.rows.is_padded
        raise ValueError(
            f"measure returned {shown(value)}. It must return {n_rows} finite numbers, one "
            f"for each row, such as lambda run: run.last_logits[:, 5].{padding}"
        )
    return value if value.is_floating_point() else value.to(result.logits.dtype)


def divergence(base: Run, result: Run) -> PerRow:
    """The mean over tokens of the KL divergence from the predictions of the untouched model."""
    dtype = torch.promote_types(result.logits.dtype, torch.float32)
    before, after = (one.logits.log_softmax(-1, dtype) for one in (base, result))
    return result.rows.means((before.exp() * (before - after)).sum(-1))


def logit_difference(answers: Sequence[Tensor], result: Run) -> PerRow:
    """The logit of one answer minus that of another at the last token of each text."""
    logits = result.last_logits
    answer, versus = (logits.gather(1, ids[:, None])[:, 0] for ids in answers)
    return answer - versus


def loss_or_accuracy(measure: str, tokens: Text, result: Run) -> PerRow:
    """The loss or the accuracy on all tokens, or on the second pass of repeated rows."""
    logits, rows = result.logits, result.rows
    require_finite(rows.select(logits), "The output of the model")
    if isinstance(tokens, Repeated):
        return second_pass(logits, tokens)[measure == "accuracy"]
    if measure == "loss":
        return rows.means(token_losses(logits, rows.tokens))
    is_right = logits[:, :-1].argmax(-1) == rows.tokens[:, 1:]
    return rows.means(is_right.to(logits.dtype))


@checked
def effect(
    model: Model,
    tokens: Text,
    without: str | Iterable[str] = (),
    *,
    keep: str | Iterable[str] | None = None,
    fill: Fill = "zero",
    patch: Text | Run | None = None,
    at: Any = None,
    measure: Measure = "loss",
    answers: Answers | None = None,
    draws: int = 20,
    seed: int = 0,
) -> Effect:
    """Measure what replacing parts, inputs, wires or paths changes, next to random controls.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, a list of texts of any lengths, token ids `[batch, pos]`, or `Repeated` rows
    without : what is replaced, all at once
    keep : what stays, while all others of the kind are replaced, as in `run`. The controls keep as many
        others.
    fill, patch, at : by what and where, as in `run`: by zero, by values of the untouched model on the
        other rows or on a data set, or by its values on the tokens of `patch`
    measure : `"loss"` in nats or `"accuracy"`, on the second pass of `Repeated` rows, otherwise on all
        tokens of each text; `"KL divergence"` of the predictions from those of the whole model, in nats,
        the mean over all tokens; `"logit difference"` at the last token; or a function of the `Run` that
        returns one number for each row
    answers : for a logit difference, the answer and what it is compared with, such as
        `(" God", " man")`; each may be a list with one for each text
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
    Layers before the first replaced place return what they returned in the whole model, and hooks there
    do not act again.
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
    rows = read_rows(model, tokens)
    named = names_of(without) if keep is None else names_of(keep, "keep")
    given = list(dict.fromkeys(join(*parse(name)) for name in named))
    if not given or (keep is not None and names_of(without)):
        raise ValueError(
            "Name what is replaced in without=, such as without='L0H1', or what stays in keep=, and not "
            "both."
        )
    base = run(model, rows)
    replacement = replacement_of(model, rows, fill, patch, at)
    on_rows = measure_of(base, tokens, measure, answers)
    chains = [parse(name) for name in given]
    alone = [join(*chain) for chain in chains if not any(covers(other, chain) for other in chains)]
    sets = [given, *random_controls(model, alone, draws, seed)]
    replaced = sets if keep is None else [all_but(model, names) for names in sets]
    before = on_rows(base)
    jobs = [delayed(measure_without)(base, names, replacement, on_rows) for names in replaced]
    # threads would add their hooks to the same model
    backend, _ = get_active_backend()
    n_jobs = 1 if getattr(backend, "supports_sharedmem", False) else None
    values: Any = Parallel(n_jobs)(tqdm(jobs, desc="effect", delay=5, leave=False))
    what = ", ".join(given)
    if len(given) > 3:
        what = f"{len(given)} {'wires' if '->' in given[0] else 'parts'}"
    how = "from other tokens" if patch is not None else fill
    if not isinstance(how, str):
        how = "a given value" if isinstance(how, Tensor) else "mean of other texts"
    done = f"{'without' if keep is None else 'only'} {what} ({how})"
    label = measure if isinstance(measure, str) else "measure"
    names = tuple(tuple(names) for names in sets)
    return Effect(done, label, names, torch.stack([before, *values]))


# Random controls


def random_controls(model: Model, names: Sequence[str], draws: int, seed: int) -> list[list[str]]:
    """Different sets of names like the given ones; in a set, no name comes twice."""
    alike, pools = [candidates(model, name) for name in names], []
    for pool in alike:
        rest = [name for name in pool if name not in names]
        # where the given names leave too few others, a control may hold some of them, but never all
        pools.append(rest if len(rest) >= alike.count(pool) else pool)
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


@checked
@torch.inference_mode(False)
@torch.enable_grad()
def attribution(
    model: Model,
    tokens: Text,
    *,
    keep: str | Iterable[str] | None = None,
    fill: Fill = "zero",
    patch: Text | Run | None = None,
    at: Any = None,
    measure: Measure = "loss",
    answers: Answers | None = None,
    neurons: bool = False,
    wires: bool = False,
    shares: Sequence[float] = (0.0,),
    verify: int = 0,
) -> Table:
    r"""Estimate for every head, or every wire between heads, what replacing it would change.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, a list of texts of any lengths, token ids `[batch, pos]`, or `Repeated` rows
    keep : what stays, as in `run`: the table has all others of the kind, so with a wire all other wires
        from heads into the same head
    fill, patch, at, measure, answers : as in `effect`; the measure must be differentiable
    neurons : whether the neurons of all MLPs follow the heads; the z of a neuron is its activation,
        times the other branch in a gated MLP
    wires : whether the table has wires into Q, K and V of heads, from heads of earlier layers, instead
    shares : for wires, how far all of them are replaced where the slopes are taken; several slopes are
        averaged. `(0,)` is the whole model, `(1,)` the model in which all of them are cut, and
        `(0.1, 0.3, 0.5, 0.7, 0.9)` are integrated gradients.
    verify : how many of the largest estimates are compared with `effect`, which makes the cut

    Returns
    -------
    A `Table` with one value for each head, neuron or wire: the estimated change of the mean over rows.
    With `verify`, its second axis has the estimate, the measured change, the median change of random
    controls and the rank among them; what was not measured is NaN.

    Raises
    ------
    ValueError : for a measure without a gradient, shares outside 0 to 1, a model without heads, and names
        in `keep` that leave nothing of the table

    Notes
    -----
    Formula: $\nabla_z m \cdot (z' - z)$, where gradients flow through all later heads and layers, and z'
    is the replacement in the untouched model. For a wire, z is what its writer has left in the stream,
    the gradient is that of the one input that reads it, norm included, and all values are those of the
    run at the share. A head that the measure does not depend on gets 0. The
    error is that of a straight line: a saturated softmax can give an estimate of the wrong sign.
    `effect` measures the change itself.
    Source: attribution patching (Nanda 2023; Syed et al. 2023); several shares: Hanna et al. 2024.

    Examples
    --------
    >>> import circuitkit as ck
    >>> attribution(ck.load_model("two-layer"), torch.arange(12).view(2, 6)).values.shape
    torch.Size([8])
    """
    require_at_least(0, verify=verify)
    rows = read_rows(model, tokens)
    if not head_names(model):
        raise ValueError("This model has no attention heads, so there is nothing to attribute to.")
    base = run(model, rows)
    replacement = replacement_of(model, rows, fill, patch, at)
    on_rows = measure_of(base, tokens, measure, answers)
    others = None if keep is None else all_but(model, names_of(keep, "keep"))
    if wires:
        estimates = estimates_of_wires(base, replacement, on_rows, shares, others)
    else:
        estimates = estimates_of_parts(base, replacement, on_rows, neurons)
    if others is not None:
        estimates = {name: value for name, value in estimates.items() if name in others}
    if not estimates:
        raise ValueError(
            f"Nothing is left to attribute to with keep={keep!r}. Keep heads; or wires with wires=True, "
            "or neurons with neurons=True, but not all of them."
        )
    kind = "wire" if wires else "head or neuron" if neurons else "head"
    title = "estimated change of the measure"
    table = Table(torch.stack(list(estimates.values())).cpu(), {kind: tuple(estimates)}, title)
    if not verify:
        return table
    columns = torch.full((len(table), 4), torch.nan)
    columns[:, 0] = table.values
    for name in table.top(verify, absolute=True):
        cut = effect(
            model, tokens, name, fill=fill, patch=patch, at=at, measure=measure, answers=answers
        )
        measured = [cut.change, cut.controls.median(), cut.rank]
        columns[table.names.index(name), 1:] = torch.tensor(measured)
    axes = {**table.axes, "change": ("estimated", "measured", "control", "rank")}
    return Table(columns, axes, "change of the measure")


def slopes_at(
    base: Run, replacement: Replacement, names: Sequence[str], measure: MeasureOfRows
) -> tuple[Run, dict[str, Tensor]]:
    """A run with names replaced, and the slopes of the mean of a measure by what is traced there."""
    cuts = resolve(base.model, names, everywhere=replacement.positions is None)
    result = run_with(base.model, base.rows, cuts, replacement)
    mean, traced = measure(result).mean(), result.recording.traced
    # a measure that reads the cache depends on the run from which the cache comes
    for_cache = result.recording.traced_for_cache
    values, found = [*traced.values(), *for_cache.values()], ()
    if mean.requires_grad:
        # an early measure, such as a pattern, does not depend on later heads: their slope is zero
        found = torch.autograd.grad(mean, values, retain_graph=True, materialize_grads=True)
    if not any(bool(slope.any()) for slope in found):
        raise ValueError(
            "The measure has no gradient: no part changes it, or it uses detach() or no_grad(), or "
            "it calls the model. Give a differentiable function of the run, such as "
            "lambda run: run.logits[:, -1, 5]."
        )
    slopes: Any = defaultdict(float)
    for place, slope in zip([*traced, *for_cache], found, strict=True):
        slopes[place] += slope
    return result, slopes


def estimates_of_parts(
    base: Run, replacement: Replacement, measure: MeasureOfRows, neurons: bool
) -> dict[str, Tensor]:
    """The estimate for each head and, if wanted, behind them for each neuron."""
    model, by_place = base.model, {}
    for layer in attention_layers(model):
        by_place[f"L{layer}"] = head_names(model, layer), partial(Recording.heads_z, layer=layer)
    for layer in attention_layers(model) if neurons else ():
        if own := list(map(str, neurons_in(model, layer))):
            by_place[f"L{layer} MLP"] = own, partial(Recording.neurons_z, layer=layer)
    names = [name for own, _ in by_place.values() for name in own]
    _, slopes = slopes_at(base, Replacement("zero", share=0), names, measure)
    estimates = []
    for place, (_, z_in) in by_place.items():
        z = z_in(base.recording)
        product = slopes[place] * (replacement(z, z_in) - z)
        # [batch, pos, head, d_head] or [batch, pos, neuron]
        estimates.extend(product.flatten(3).sum((0, 1, 3)) if z.ndim == 4 else product.sum((0, 1)))
    return dict(zip(names, estimates, strict=True))


def estimates_of_wires(
    base: Run,
    replacement: Replacement,
    measure: MeasureOfRows,
    shares: Sequence[float],
    others: list[str] | None,
) -> dict[str, Tensor]:
    """The estimate for each wire between heads, the mean over shares.

    At a share, the layers are called a second time with all wires replaced as far as that. The slope by
    the input of one head is taken back from what this head has gathered in the second call.
    """
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"shares={shares!r} must be numbers from 0 to 1, such as (0,) or (1,).")
    model = base.model
    estimates = {name: base.logits.new_zeros(()) for side in SIDES for name in wires(model, side)}
    if not estimates:
        raise ValueError("This model has no wires between heads: it needs two layers of attention.")
    cut = [name for name in estimates if others is None or name in others]
    if not cut:
        return {}
    for share in shares:
        result, slopes = slopes_at(base, replace(replacement, share=share), cut, measure)
        for reader, second in result.recording.second_call_of_head.items():
            gathered = second.heads_z(reader.layer)[:, :, reader.number]
            slope = slopes[f"L{reader.layer}"][:, :, reader.number]
            streams = list(second.traced.values())
            slopes_of_streams = torch.autograd.grad(gathered, streams, slope, retain_graph=True)
            for writer in heads_before(model, reader):
                share_of = partial(
                    Recording.share, name=parse(writer)[0], reading_step=step_of(model, reader)
                )
                now = share_of(result.recording)
                change = (replacement(now, share_of) - now).detach()
                for side, slope in zip(second.traced, slopes_of_streams, strict=True):
                    estimates[f"{writer}->{reader}.{side}"] += (slope * change).sum() / len(shares)
    return estimates
