"""Run a model with parts ablated, wires and paths cut, or values patched in from other tokens.

`circuitkit.intervention` explains how a wire and a path are cut, and `circuitkit.cuts` what a set of
names means together.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.bridge import (
    Model,
    listeners,
    returning,
    undisturbed,
    versions_of_weights,
)
from circuitkit.checks import checked
from circuitkit.cuts import Cuts, all_but, resolve
from circuitkit.first_use import (
    Verdict,
    require_additive_layers,
    require_embedding_alone,
    require_replaceable,
    require_same_model,
)
from circuitkit.hooks import hooked
from circuitkit.intervention import CutRun, Replacement
from circuitkit.names import parse
from circuitkit.parts import Recording, hooks_to_record, step_of
from circuitkit.reading import converted_neurons, mask_of
from circuitkit.rows import Rows, Text, read_rows
from circuitkit.runs import Run

__all__ = ["Run", "run"]
Fill = Literal["zero", "mean", "resample"] | Run | Float[Tensor, "..."]


@checked
def run(
    model: Model,
    tokens: Text,
    without: str | Iterable[str] = (),
    *,
    keep: str | Iterable[str] | None = None,
    fill: Fill = "zero",
    patch: Text | Run | None = None,
    at: Any = None,
) -> Run:
    """Run a model with parts ablated, and wires and paths cut, all at once.

    A part `"L0H1"` is replaced for everything that reads it. A wire `"L0H1->L1H3.K"` is replaced
    only in the keys of L1H3: they are computed from `norm(x - y + y_new)`, where `x` is the stream,
    `y` what L0H1 has left in it, and `y_new` the replacement. An input `"L1H3.K"` is replaced as a
    whole: `x_new` in place of `x`. A path `"embed->L0H1->L1H3.K"` replaces `y` by what L0H1 would
    have written with the wire `"embed->L0H1"` cut.

    Parts are `"embed"`, `"pos"`, `"L0H1"`, `"L0 bias"`, `"L0 MLP"`, the neuron `"L0N12"` of this MLP,
    and of a converted layer its head `"L0N12.0"`. What a neuron gathers is its activation, times the
    other branch in a gated MLP. A wire or path ends in one input of a head (`"L0H1->L1H3.K"`), in all
    three (`"L0H1->L1H3"`), in an MLP or a neuron, whose one input has no letter (`"L0H1->L1 MLP"`,
    `"L0H1->L1N12"`), in a converted neuron (`"L0H1->L1N12.Q"` or `".V"`), or in the last stream (`"L0H1->unembed"`). The gates of
    a layer from `with_gated_layer` are no input: they read the whole stream, whatever is cut. So does a gate behind the heads of a
    layer (AFMoE). In BLOOM and BERT a norm follows the embedding, and `"embed"` replaces what lies before this norm.
    `circuitkit.names` lists all forms of names.

    A head in the middle of a path passes on what changes through all of its inputs, or with a letter
    through one of them: `"embed->L0H1.V->L1H3.K"` replaces `y` by what L0H1 would have written with
    the wire `"embed->L0H1.V"` cut, so with its own pattern.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, or token ids `[batch, pos]`. Every id is read as text, also those that pad a row.
    without : a name, or several names, of what is replaced, all at once. At all positions, an input
        covers its wires, a wire its paths, and a part all; `circuitkit.cuts` has the rules.
        `"unembed"` is the input of the unembedding, the whole last stream.
    keep : a name, or several names, of what stays, while all others of the same kind are replaced.
        Of heads (`"L0H1"`), all other heads of the model are replaced; of MLPs, all other MLPs; of
        neurons, all other neurons of all MLPs. Of wires from heads (`"L0H1->L1H3.K"`), all other
        wires from heads into the queries, keys and values of L1H3 are cut, and other readers keep
        theirs; likewise of wires from MLPs or neurons, and for each reader that is named. Embeddings,
        biases, and parts and wires of other kinds stay. What `without` names is replaced as well.
    fill : `"zero"`, or values of the run without any replacement, as in `effect`: their `"mean"` over
        rows, position by position, or those of the row before (`"resample"`; the first row takes
        those of the last one). A bias is the same in every row and every run, so only `"zero"`
        changes it. Where a norm follows an MLP (Gemma 2), its mean is that of the values before the
        norm, which then acts on this mean.
    patch : other tokens of the same shape, or their run on this model: the values come from there.
        A run from before a change of the weights is refused; torch does not count changes that are
        made in place through `weight.data`, so run again after such a change. The values of a given
        run are those with the hooks that the model had then.
    at : positions at which values are replaced, such as `[3]`, or `[-1]` for the last; all of them if
        it is None. Of a path, they are those of its first part; what follows from it may change at
        all later positions, and there no other name covers it.

    Returns
    -------
    A `Run` with `logits`, `cache` and `part(name)`.

    Raises
    ------
    ValueError : for unknown names, `keep` without names, with names of several kinds or with one that
        is in `without`, `fill` from other rows if all rows are equal, a `patch` from
        another model, positions outside the rows or none, `fill`, `patch` or `at` where nothing is
        replaced, hooks that change values at a replaced place, or anywhere if wires are cut, and
        logits that are not numbers (NaN)

    Notes
    -----
    Error: rounding. The norm in front of a changed input is computed again. BERT has closing
    norms, which follow the sum of the stream and a layer's output: they keep their divisors. A norm of
    what a layer writes (Gemma 2) keeps its divisor where a wire is cut; where a path is cut, it has
    the divisor that belongs to what the part on the path would write. If paths run
    through several heads of one layer with such a norm, each of them is divided as if that head alone
    had changed. There, a part is not the sum of its wires: a part is replaced in front of the norm,
    which then divides the changed sum, and a wire behind it. So with `fill="mean"` or `patch`, a part
    takes the mean or the patched value in front of the norm, also where it covers its own wire. A key
    belongs to one query head here, even where the model shares it among a group. If heads of a layer
    have different wires or paths cut, the layer is called once more for each of these sets. Only
    permanent hooks act in such a call, between what the layer reads and what it writes; other hooks
    raise an error if they change a value. Those that look see each value once. `"mean"` and
    `"resample"` run the model twice.
    Source: path patching (Wang et al. 2022; Goldowsky-Dill et al. 2023).

    Examples
    --------
    >>> import torch, circuitkit as ck
    >>> model = ck.load_model("two-layer")
    >>> cut = run(model, torch.tensor([[1, 2, 3]]), without="L0H1->L1H3.K")
    >>> cut.logits.shape == model(torch.tensor([[1, 2, 3]])).shape
    True

    Patching: at the last position, head L1H3 writes what it writes after another name.

    >>> clean, other = "Mr. Dorling saw Mr. D", "Mr. Darling saw Mr. D"
    >>> patched = run(model, clean, without="L1H3", patch=other, at=[10])

    A path through the values of L0H1: the keys of L1H3 read what L0H1 would write, with the pattern
    that it has, if its values missed the embedding.

    >>> cut = run(model, clean, without="embed->L0H1.V->L1H3.K")

    Keeping: of all eight heads, only two are left.

    >>> two = run(model, clean, keep=["L0H1", "L1H3"])
    """
    rows = read_rows(model, tokens)
    names = names_of(without)
    if keep is not None:
        names += replaced_besides(model, names_of(keep, "keep"), names)
    elif not names and (patch is not None or at is not None or not is_zero(fill)):
        raise ValueError(
            "fill, patch and at say how values are replaced, and nothing is replaced. "
            "Name what is replaced in without=, such as without='L0H1', or what stays in keep=."
        )
    replacement = replacement_of(model, rows, fill, patch, at)
    with torch.no_grad():
        cuts = resolve(model, names, everywhere=at is None)
        result = run_with(model, rows, cuts, replacement)
    require_numbers(result)
    return result


def require_numbers(result: Run) -> None:
    """Raise a `ValueError` for logits that are not numbers."""
    # the largest of numbers with NaN among them is NaN
    if bool(result.rows.select(result.logits).max().isnan()):
        raise ValueError(
            "The output of the model holds NaN, so nothing could be read from this run. Look for NaN "
            "among the weights, or in what hooks put in; model.run_with_cache(tokens) shows where it "
            "begins."
        )


def replacement_of(
    model: Model,
    rows: Rows,
    fill: Fill,
    patch: Any,
    at: Any = None,
) -> Replacement:
    """What replaces values, from the arguments of `run`."""
    if patch is not None and not is_zero(fill):
        raise ValueError("patch takes values from other tokens, so leave out fill.")
    positions = rows.places(at)
    if isinstance(fill, Tensor):
        return Replacement("tensor", None, positions, value=fill.to(model.W_E))
    if isinstance(fill, Run):
        require_run_of(model, fill, "fill")
        return Replacement("mean", fill.recording, positions, fill.rows)
    if patch is not None:
        source = run_to_patch_from(model, rows, patch)
        return Replacement("patch", source.recording, positions)
    if fill == "zero":
        return Replacement(fill, None, positions)
    if not rows.is_padded and bool((rows.tokens == rows.tokens[0]).all()):
        raise ValueError(
            f"fill={fill!r} takes values from other rows, and all rows are equal. "
            "Give different rows, or write fill='zero'."
        )
    # the values before any replacement
    return Replacement(fill, run(model, rows).recording, positions, rows)


def is_zero(fill: Fill) -> bool:
    """Whether values are replaced by zero."""
    return isinstance(fill, str) and fill == "zero"


def require_run_of(model: Model, source: Run, argument: str) -> None:
    """Raise a `ValueError` for a run whose values mean something else in this model."""
    if source.model is not model or source.has_old_weights():
        raise ValueError(
            f"{argument} is a run of another model, or of this one before its weights were changed, so "
            f"its values mean something else here. Run it again: {argument}=run(model, other_tokens)."
        )


def run_to_patch_from(model: Model, rows: Rows, patch: Any) -> "Run":
    """The run that values come from: a given one, or that of given tokens."""
    source = patch if isinstance(patch, Run) else run(model, patch)
    require_run_of(model, source, "patch")
    if source.lengths.tolist() != rows.lengths.tolist():
        raise ValueError(
            f"patch must have the shape of tokens, {tuple(rows.tokens.shape)}, and each of its texts must "
            f"be as long as the one that it replaces. It has the shape {tuple(source.tokens.shape)}."
        )
    return source


def run_with(
    model: Model,
    rows: Rows,
    cuts: Cuts,
    replacement: Replacement,
    recorded: set[str] | None = None,
    base: Run | None = None,
) -> Run:
    """Run a model with cuts that are resolved already; by default, record what parts need.

    With the run `base` of the same rows without cuts, layers before the first cut return what they returned there.
    """
    weights = versions_of_weights(model)
    require_possible(model, cuts, require_same_model(model, weights))
    points = model.hook_dict
    recording = Recording(model, {name: str(point.name) for name, point in points.items()})
    cut_run = CutRun(model, cuts, replacement, recording)
    if recorded is None:
        recorded = hooks_to_record(model, points)
    mask = mask_of_padding(model, rows)
    known = {}
    if base is not None:
        recording.values |= base.recording.values
        returned = base.recording.returned
        known = {block: returned[block] for block in layers_before(model, cuts)}
    listening = listeners((block, recording.keep) for block in model.blocks)
    with undisturbed(model), hooked(cut_run, points, recorded), listening, returning(known):
        logits = rows.blank(model(rows.tokens, **mask))
    if cuts.inputs:
        recording.require_additive(is_checked=True)
    again = partial(run_with, model, rows, cuts, replacement)
    return Run(model, rows, logits, recording, cuts, again, weights)


def layers_before(model: Model, cuts: Cuts) -> list[Any]:
    """The layers before the first one that a cut changes."""
    on_paths = [part for missed in cuts.inputs.values() for path in missed for part in path[1:]]
    steps = [step_of(model, part) for part in (*cuts.parts, *cuts.readers, *on_paths)]
    return list(model.blocks)[: max(0, min(steps, default=0) // 2)]


def mask_of_padding(model: Model, rows: Rows) -> dict[str, Tensor]:
    """What keeps a model from reading padding, which only models need that look ahead.

    Some rotations are chosen by the number of positions, that of the longest text. Then a shorter
    text would not have its own, so such texts are refused.
    """
    if not rows.is_padded:
        return {}
    config = getattr(model.original_model, "config", None)
    parameters = getattr(config, "rope_parameters", None) or {}
    # each kind of layer may have its own
    kinds = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    if {kind.get("rope_type") for kind in kinds} & {"dynamic", "longrope"}:
        raise ValueError(
            "The rotary positions of this model depend on the length of the longest text, so texts of "
            "different lengths cannot run together. Give texts of one length."
        )
    return {"attention_mask": rows.is_text.long()} if mask_of(model) == "full" else {}


def require_possible(model: Model, cuts: Cuts, verdict: Verdict) -> None:
    """Raise a `ValueError` for cuts that this kind of model does not allow."""
    for part in cuts.parts:
        if part.kind in ("MLP", "N") and converted_neurons(model, part.layer) is None:
            require_replaceable(model, part.layer or 0, "mlps", verdict)
        if part.kind == "embed":
            require_embedding_alone(model, verdict)
    if cuts.inputs:
        require_additive_layers(model, verdict)
    for part in cuts.readers:
        if part.kind == "H":
            require_replaceable(model, part.layer or 0, "heads", verdict)


def replaced_besides(model: Model, kept: list[str], without: list[str]) -> list[str]:
    """What `keep` replaces: all others of the kind, if no name is kept and replaced at once."""
    replaced = {parse(name) for name in without}
    for name in kept:
        if parse(name) in replaced:
            raise ValueError(f"{name!r} is in keep and in without. Leave it out of one of the two.")
    return all_but(model, kept)


def names_of(names: str | Iterable[str], argument: str = "without") -> list[str]:
    """A name or several ones as a list; a set is sorted, so that equal calls do the same."""
    if isinstance(names, str):
        return [names]
    if isinstance(names, dict):
        raise TypeError(f"{argument} is a name such as 'L0H1' or a list of names, not {names!r}.")
    return sorted(names, key=str) if isinstance(names, set | frozenset) else list(names)
