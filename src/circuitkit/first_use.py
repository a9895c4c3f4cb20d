"""The check at first use that a transformer-lens bridge is the model that it wraps.

A `TransformerBridge` puts modules of its own into the model that it wraps, and computes attention
itself. `verdict_on` compares the two once: for some settings the bridge computes another model, and
then every number about it would be wrong without a word. It also compares what each layer writes
with what the layer adds to the residual stream.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from circuitkit.bridge import (
    HOOKS_OF_SWITCHES,
    Model,
    all_modules,
    has_folded_weights,
    listeners,
    own_hooks_only,
    undisturbed,
    versions_of_weights,
)
from circuitkit.comparison import (
    ACCOUNTED,
    SCORE_SETTINGS,
    architecture_of,
    attention_seen,
    compare_embedding,
    compare_layers,
    compare_reads,
    compare_unembedding,
    difference_of_results,
    excess_of_logits,
    known_difference,
    measured_factors,
    multipliers,
    start_of_stream,
)


@dataclass(frozen=True)
class Verdict:
    """What the check at first use has found. An empty text says that all is right.

    Parameters
    ----------
    forward : why the model does not run
    logits : how the logits differ from those of the wrapped model
    weights : the same, unless the reason is a setting that changes scores alone
    reads : why the norm before a head or an MLP is not the one that is called so
    stream : why the last stream is not the sum of what the layers write
    unembedding : why the logits are no product of the last stream, behind its norm, with `W_U`
    mlps : by layer, why what its MLP writes cannot be replaced alone
    heads : by layer, why inputs of its heads cannot be replaced one by one
    embed : why the embedding cannot be replaced alone
    factors : by what the model multiplies what `"embed"`, `"L0 attn"`, `"L0 mlp"` and so on write,
        or its logits (`"unembed"`), where this is not 1; None if it is not known
    attention : by layer, what its heads have read, and their patterns
    patterns : by layer, why the patterns of its heads do not follow from its weights as `heads_of`
        reads them; filled when the heads of a layer are read first
    """

    forward: str = ""
    logits: str = ""
    weights: str = ""
    reads: str = ""
    stream: str = ""
    unembedding: str = ""
    mlps: Mapping[int, str] = field(default_factory=dict)
    heads: Mapping[int, str] = field(default_factory=dict)
    embed: str = ""
    factors: Mapping[str, float | None] = field(default_factory=dict)
    attention: Mapping[int, tuple[Tensor, Tensor]] = field(
        default_factory=dict, compare=False, repr=False
    )
    patterns: dict[int, str] = field(default_factory=dict, compare=False)


class Remembered(NamedTuple):
    """A verdict, and the weights and the configuration that it holds for."""

    weights: list[tuple[int, int]]
    configuration: list[Any]
    verdict: Verdict


VERDICTS: WeakKeyDictionary[Any, Remembered] = WeakKeyDictionary()
"""What is known of the models that were used."""


class Before(NamedTuple):
    """What a model computed on the rows of `random_rows`, as log-probabilities, and its weights then."""

    log_probabilities: Tensor
    weights: list[tuple[int, int]]


BEFORE_PROCESSING: WeakKeyDictionary[Any, Before] = WeakKeyDictionary()
"""What is known of models before transformer-lens processed their weights."""


def verdict_on(model: Model, weights: list[tuple[int, int]] | None = None) -> Verdict:
    """Check a model when it is first used, and again when its weights have changed.

    Two short rows of random tokens run through the bridge and through the model that it wraps,
    without any hooks of the user and outside of autocast. The result is remembered until torch counts
    a change of a weight, or a setting of the bridge or of the wrapped model changes. Torch does not count changes through
    `weight.data`. A model whose weights `enable_compatibility_mode` has processed is compared with
    what it computed before, as far as that is known: from `load_model`, or from an earlier check.

    Parameters
    ----------
    model : a `TransformerBridge`
    weights : `versions_of_weights(model)`, if they are known

    """
    weights = versions_of_weights(model) if weights is None else weights
    skipped = {*HOOKS_OF_SWITCHES, "_bridge_ref"}
    configuration = [value for name, value in vars(model.cfg).items() if name not in skipped]
    configuration.append(settings_of_wrapped(model))
    known = VERDICTS.get(model)
    if known is None or known.weights != weights or known.configuration != configuration:
        known = Remembered(weights, configuration, examine(model))
        if not known.verdict.forward:  # the machine may have had too little memory
            VERDICTS[model] = known
    return known.verdict


PLAIN = (bool, int, float, str, type(None))
"""The types of settings that a module holds."""


def settings_of_wrapped(model: Model) -> list[Any]:
    """The configuration of the wrapped model, and the numbers and words that its modules hold."""
    config = getattr(model.original_model, "config", None)
    settings: list[Any] = [
        repr(value)
        for name, value in getattr(config, "__dict__", {}).items()
        if not name.startswith("_")
    ]
    for module in all_modules(model.original_model):
        if isinstance(module, HookPoint | GeneralizedComponent):
            continue  # the bridge keeps notes of its last run in its own
        settings += [
            (name, value)
            for name, value in vars(module).items()
            if name[0] != "_" and name != "training" and isinstance(value, PLAIN)
        ]
    return settings


def require_own_keys(model: Model) -> None:
    """Raise a `ValueError` for latent attention (DeepSeek), where the heads of a layer share what keys and values come from."""
    for layer, block in enumerate(getattr(model, "blocks", [])):
        if "MLA" in type(getattr(block, "attn", None)).__name__:
            raise ValueError(
                f"Layer {layer} of this model ({architecture_of(model)}) has latent attention: its heads share "
                "a vector from which keys and values are computed. This library reads heads that have W_Q, "
                "W_K and W_V of their own. For such a model, use model.run_with_hooks of transformer-lens."
            )


def require_same_model(model: Model, weights: list[tuple[int, int]] | None = None) -> Verdict:
    """Raise a `ValueError` if the bridge does not run, or computes another model than it wraps."""
    require_own_keys(model)
    verdict = verdict_on(model, weights)
    if verdict.forward:
        dtypes = sorted({str(weight.dtype) for weight in model.original_model.parameters()})
        other = "For runs, load a model with other settings."
        if dtypes != ["torch.float32"]:
            other = (
                f"Its weights are in {' and '.join(dtypes)}. Write model.to(torch.float32) first."
            )
        raise ValueError(f"{verdict.forward}. Weights can be read: heads_of(model). {other}")
    require_nothing(verdict.logits)
    return verdict


def require_right_weights(model: Model) -> None:
    """Raise a `ValueError` if the bridge may have read the weights of the model in a wrong way."""
    require_nothing(verdict_on(model).weights)


def require_additive_layers(model: Model, verdict: Verdict | None = None) -> None:
    """Raise a `ValueError` if the last stream is not the sum of what the layers write."""
    verdict = verdict_on(model) if verdict is None else verdict
    if verdict.forward or verdict.stream:
        raise ValueError(
            f"The stream of this kind of model ({architecture_of(model)}) is not known to be the "
            f"sum of its parts, so wires cannot be cut either: {verdict.forward or verdict.stream}. "
            "Other things work all the same: run(model, tokens, without='L0H1') and effect with "
            "heads or embeddings, attribution, patterns and z of a run, heads_of(model)."
        )


def require_norms_before_layers(model: Model) -> None:
    """Raise a `ValueError` if it is not known through which norm heads and MLPs read the stream."""
    problem = verdict_on(model).reads
    if problem:
        raise ValueError(
            f"It is not known what heads and MLPs read in this kind of model "
            f"({architecture_of(model)}): {problem}. Runs, patterns and z of a run, and "
            "heads_of(model) work all the same."
        )


def require_replaceable(model: Model, layer: int, what: str, verdict: Verdict) -> None:
    """Raise a `ValueError` if the MLP of a layer, or inputs of its heads, cannot be replaced alone.

    Parameters
    ----------
    what : `"mlps"` or `"heads"`, which is where `verdict` says why
    """
    problem = getattr(verdict, what).get(layer)
    names, others = {
        "mlps": (f"'L{layer} MLP'", "Heads and embeddings"),
        "heads": (f"Inputs of single heads of layer {layer}", "Whole heads and MLPs"),
    }[what]
    if problem:
        raise ValueError(
            f"{names} cannot be cut or replaced in this kind of model ({architecture_of(model)}): "
            f"{problem}. {others} can be replaced: run(model, tokens, without='L{layer}H0')."
        )


def require_embedding_alone(model: Model, verdict: Verdict) -> None:
    """Raise a `ValueError` if the stream begins with more than the embedding of the tokens."""
    if verdict.embed:
        raise ValueError(
            f"'embed' cannot be replaced in this kind of model ({architecture_of(model)}): "
            f"{verdict.embed}. In part('embed'), decompose and wires, 'embed' is all that the first "
            "layer reads. Cut a wire of it, such as without='embed->unembed', or replace heads."
        )


def require_unembedding_of_stream(model: Model) -> None:
    """Raise a `ValueError` if embedding or unembedding have another width than the stream."""
    width, d_model = model.W_U.shape[0], model.cfg.d_model
    if width != d_model:
        raise ValueError(
            f"The embeddings of this model ({architecture_of(model)}) have {width} dimensions, and "
            f"its stream has {d_model}: a projection lies between them, so what heads write "
            "cannot be multiplied with W_U. Runs with heads replaced, patterns and attribution "
            "work all the same, such as run(model, tokens).pattern('L0H0')."
        )


def require_sum_of_logits(model: Model) -> None:
    """Raise a `ValueError` for a model whose logits are no sum over its parts."""
    verdict = verdict_on(model)
    if verdict.unembedding:
        rest = "" if verdict.stream else "; residual.decompose splits its residual stream"
        raise ValueError(
            f"The logits of this model are no sum over its parts, because {verdict.unembedding}{rest}."
        )


def require_nothing(problem: str) -> None:
    """Raise a `ValueError` with this text, unless it is empty."""
    if problem:
        raise ValueError(problem)


def remember_before_processing(model: Model) -> None:
    """Keep what a new model computes, so that its processed weights can be compared with it."""
    with suppress(Exception), torch.no_grad(), as_it_is(model):
        result = model(random_rows(model)).float().log_softmax(-1)
        BEFORE_PROCESSING[model] = Before(result, versions_of_weights(model))


@contextmanager
def as_it_is(model: Model) -> Iterator[None]:
    """Inside, a model runs without switches, hooks of a user and autocast."""
    with undisturbed(model), own_hooks_only(model):
        yield


@torch.no_grad()
def examine(model: Model) -> Verdict:
    """Run a model and the model that it wraps, and compare."""
    tokens, seen = random_rows(model), {}
    with as_it_is(model):
        try:
            with listening(model.hook_dict, seen):
                logits = model(tokens)
        except Exception as problem:
            return Verdict(
                f"transformer-lens cannot run this model ({architecture_of(model)}): {first_line(problem)}"
            )
        return compare(model, tokens, logits, seen)


def compare(model: Model, tokens: Tensor, logits: Tensor, seen: Mapping[str, Tensor]) -> Verdict:
    """The verdict on a model from what its hooks have seen in a run."""
    difference = difference_of_results(model, tokens, logits, seen) or known_difference(model)
    config = getattr(model.original_model, "config", None)
    is_of_scores = any(getattr(config, name, usual) != usual for name, usual in SCORE_SETTINGS)
    processed = difference_of_processing(model, logits)
    stream, mlps, heads = compare_layers(model, seen)
    start = start_of_stream(model, tokens, seen)
    return Verdict(
        logits=difference or processed,
        weights=("" if is_of_scores else difference) or processed,
        reads=compare_reads(model, seen),
        stream=stream,
        unembedding=compare_unembedding(model, logits, seen),
        mlps=mlps,
        heads=heads,
        embed=compare_embedding(model, start),
        factors=measured_factors(model, start, logits, seen),
        attention=attention_seen(model, seen),
    )


def difference_of_processing(model: Model, logits: Tensor) -> str:
    """How processed weights have changed what the model computes, as a message, or ""."""
    weights = versions_of_weights(model)
    if not has_folded_weights(model):
        BEFORE_PROCESSING[model] = Before(logits.float().log_softmax(-1), weights)
        return ""
    before = BEFORE_PROCESSING.get(model)
    if before is None or before.log_probabilities.shape != logits.shape:
        return ""
    # processed weights are new tensors, which torch has not seen changing
    if any(weight[1] and weight not in before.weights for weight in weights):
        return ""  # the user has changed them since
    excess = excess_of_logits(logits, before.log_probabilities.to(logits.device))
    if not excess:
        BEFORE_PROCESSING.pop(model)  # later changes of weights are the user's
        return ""
    return (
        f"enable_compatibility_mode has changed what this kind of model ({architecture_of(model)}) "
        f"computes: on random tokens the log-probabilities differ by up to {excess:.2g} nats from "
        "those before. Load the model again and leave the call out. If you have changed the weights "
        "yourself since you loaded the model, run it once before the call: run(model, tokens)."
    )


def random_rows(model: Model, n_pos: int = 8) -> Int[Tensor, "batch pos"]:
    """Two short rows of random tokens, the same each time."""
    generator = torch.Generator().manual_seed(0)
    size = (2, min(model.cfg.n_ctx, n_pos))
    return torch.randint(model.W_E.shape[0], size, generator=generator).to(model.W_E.device)


def first_line(problem: Exception) -> str:
    """The first line of an error message."""
    return (
        f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0][:150].rstrip('.')}"
    )


@contextmanager
def listening(points: Mapping[str, HookPoint], seen: dict[str, Tensor]) -> Iterator[None]:
    """Inside, what each hook sees is written down, under all names of the hook.

    A second value at a hook is written down under "again" and its name as well.
    """

    def keep(names: list[str], _module: Any, _given: Any, value: Any) -> None:
        if isinstance(value, Tensor):
            seen.update({f"again {name}": value for name in names if name in seen})
            seen.update(dict.fromkeys(names, value))

    names_of_point: dict[HookPoint, list[str]] = {}
    for name, point in points.items():
        names_of_point.setdefault(point, []).append(name)
    with listeners((point, partial(keep, names)) for point, names in names_of_point.items()):
        yield


# Hooks whose values nothing reads

IDLE: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
"""Of the hooks that were asked for, whether they are idle."""


@torch.no_grad()
def is_idle(model: Model, place: str) -> bool:
    """Whether a changed value at a hook of attention leaves what the heads gather as it is.

    In some families (OPT, BERT, GPT-J) transformers computes the attention, and the hooks at patterns
    and scores only show its results.
    """
    known = IDLE.setdefault(model, {})
    z = place.rpartition(".")[0] + ".hook_z"
    points = model.hook_dict
    if place not in known and z in points:
        tokens, gathered = random_rows(model), []
        with as_it_is(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformer-lens says when it discards the value
            for factor in (1, 0.5):
                seen: dict[str, Tensor] = {}
                change = (points[place], lambda *given, f=factor: given[-1] * f)
                with listeners([change]), listening({z: points[z]}, seen):
                    model(tokens)
                gathered.append(seen.get(z))
        known[place] = gathered[0] is not None and torch.equal(*gathered)
    return known.get(place, False)


def factor_of(model: Model, part: str) -> float:
    """By what a model multiplies what a part writes; see `Verdict.factors` for names of parts.

    Every tool that multiplies weights asks here. A `ValueError` names settings that are not known.
    """
    verdict, settings = verdict_on(model), multipliers(model)
    unknown = {name: value for name, value in settings.items() if name not in ACCOUNTED}
    factor = verdict.factors.get(part, 1.0)
    if factor is None or unknown or (verdict.forward and settings):
        named = ", ".join(f"{name}={value!r}" for name, value in (unknown or settings).items())
        raise ValueError(
            f"The configuration of this model ({architecture_of(model)}) multiplies values by numbers "
            f"that are not in its weights, {named}, and what they do to {part!r} is not known here. "
            "So products of its weights would be wrong. Measure in a run instead, such as "
            "run(model, tokens, without='L0H0') or run(model, tokens).pattern('L0H0')."
        )
    return factor
