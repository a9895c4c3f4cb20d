"""The check that a transformer-lens bridge is the model, and the switches of a bridge.

A `TransformerBridge` puts modules of its own into the model that it wraps, and computes attention
itself. `first_use` compares the two once: for some settings the bridge computes another model, and
then every number about it would be wrong without a word. It also compares what each layer writes
with what the layer adds to the residual stream.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

# Shapes of models


def norms_close_layers(model: Any) -> bool:
    """Whether `ln1` and `ln2` stand behind the attention and the MLP (BERT), not before them."""
    if not len(model.blocks):
        return False
    modules = model.blocks[0]._modules
    return "ln1" in modules and "output" in str(modules["ln1"].name)


def final_hook(model: Any) -> str:
    """The hook at which the last stream is read: by BERT's prediction head, or by the last norm."""
    return "mlm_head.hook_in" if "mlm_head" in model._modules else "ln_final.hook_in"


def versions_of_weights(model: Any) -> list[tuple[int, int]]:
    """For each weight, where it lies and how often it was changed, as torch counts it."""
    versions = []
    for weight in model.original_model.parameters():
        # torch does not count changes of what is made in inference mode
        version = 0 if weight.is_inference() else weight._version
        versions.append((weight.data_ptr(), version))
    return versions


# Switches


HOOKS_OF_SWITCHES = {
    "use_attn_result": ("attn.hook_result",),
    "use_split_qkv_input": ("attn.hook_q_input", "attn.hook_k_input", "attn.hook_v_input"),
    "use_attn_in": ("attn.hook_attn_in",),
    "use_hook_mlp_in": ("hook_mlp_in",),
}
"""Each public switch of a bridge, `model.set_use_attn_result(True)` for the first one, and the
hooks in a layer that it lets act. With a switch on, an attention module takes other ways, on which
queries, keys and values have no inputs of their own, or heads no common output."""


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Inside, dropout and the switches of a bridge are off; afterwards, all is as it was."""
    changed = []
    try:
        for owner, name in settings_that_disturb(model):
            changed.append((owner, name))
            object.__setattr__(owner, name, False)
        yield
    finally:
        for owner, name in changed:
            object.__setattr__(owner, name, True)


def settings_that_disturb(model: Any) -> list[tuple[Any, str]]:
    """Each attribute that is True and has to be False in a run, with the object that holds it."""
    # the wrapped model is no submodule of a bridge
    modules = dict.fromkeys([*model.modules(), *model.original_model.modules()])
    settings: list[tuple[Any, str]] = [
        (module, "training") for module in modules if module.training
    ]
    owners = {id(model.cfg): model.cfg}
    for block in model.blocks:
        # a layer may hold a copy of the configuration, which the public switches change as well
        for module in (block, *block._modules.values()):
            config = None if module is None else module.__dict__.get("config")
            owners[id(config)] = config
        owners[id(block)] = block  # holds the switch "_use_hook_mlp_in"
    for owner in owners.values():
        values = getattr(owner, "__dict__", {})
        for switch in HOOKS_OF_SWITCHES:
            settings.extend((owner, name) for name in (switch, f"_{switch}") if values.get(name))
    switches = dict.fromkeys(name.removeprefix("_") for _, name in settings)
    for switch in switches:
        require_no_hooks(model, switch)
    return settings


def require_no_hooks(model: Any, switch: str) -> None:
    """Raise a `ValueError` if a user's hook needs a switch that is off in a run."""
    for layer, block in enumerate(model.blocks):
        for hook in HOOKS_OF_SWITCHES.get(switch, ()):
            point: Any = block
            for name in hook.split("."):
                point = None if point is None else point._modules.get(name)
            if point is not None and point.fwd_hooks:
                raise ValueError(
                    f"There is a hook at blocks.{layer}.{hook}, which acts only with {switch}. This "
                    "switch is off while circuitkit runs a model, so the hook would do nothing. "
                    "Remove it: model.reset_hooks(including_permanent=True). To replace what a head "
                    "reads, write run(model, tokens, without='L1H3.K', patch=other_tokens)."
                )


@contextmanager
def own_hooks_only(model: Any) -> Iterator[None]:
    """Inside, the hooks that a user has added to a bridge are off, permanent ones as well."""
    before = []
    for module in dict.fromkeys([*model.modules(), *model.original_model.modules()]):
        if not isinstance(module, HookPoint | GeneralizedComponent):
            continue
        its_users = {
            handle.hook.id: handle.user_hook for handle in getattr(module, "fwd_hooks", ())
        }
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = getattr(module, name)
            own = type(hooks)(
                (number, hook)
                for number, hook in hooks.items()
                if is_own(its_users.get(number, hook))
            )
            if len(own) < len(hooks):
                before.append((module, name, hooks))
                object.__setattr__(module, name, own)
    try:
        yield
    finally:
        for module, name, hooks in before:
            object.__setattr__(module, name, hooks)


def is_own(hook: Any) -> bool:
    """Whether a hook is a part of the bridge, or of a converted layer."""
    function = hook.func if isinstance(hook, partial) else hook
    place = str(getattr(function, "__module__", ""))
    return place.startswith(("transformer_lens.model_bridge", "circuitkit.conversion"))


# The check at first use


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
    """

    forward: str = ""
    logits: str = ""
    weights: str = ""
    reads: str = ""
    stream: str = ""
    unembedding: str = ""
    mlps: Mapping[int, str] = field(default_factory=dict)
    heads: Mapping[int, str] = field(default_factory=dict)


class Remembered(NamedTuple):
    """A verdict, and the weights and the configuration that it holds for."""

    weights: list[tuple[int, int]]
    configuration: list[Any]
    verdict: Verdict


VERDICTS: WeakKeyDictionary[Any, Remembered] = WeakKeyDictionary()
"""What is known of the models that were used."""


def first_use(model: Any, weights: list[tuple[int, int]] | None = None) -> Verdict:
    """Check a model when it is first used, and again when its weights have changed.

    Two short rows of random tokens run through the bridge and through the model that it wraps,
    without any hooks of the user. The result is remembered until torch counts a change of a weight,
    or the bridge's configuration changes. Torch does not count changes through `weight.data`.

    Parameters
    ----------
    model : a `TransformerBridge`
    weights : `versions_of_weights(model)`, if they are known

    """
    weights = versions_of_weights(model) if weights is None else weights
    skipped = {*HOOKS_OF_SWITCHES, "_bridge_ref"}
    configuration = [value for name, value in vars(model.cfg).items() if name not in skipped]
    known = VERDICTS.get(model)
    if known is None or known.weights != weights or known.configuration != configuration:
        known = Remembered(weights, configuration, examine(model))
        if not known.verdict.forward:  # the machine may have had too little memory
            VERDICTS[model] = known
    return known.verdict


def require_same_model(model: Any, weights: list[tuple[int, int]] | None = None) -> Verdict:
    """Raise a `ValueError` if the bridge does not run, or computes another model than it wraps."""
    verdict = first_use(model, weights)
    if verdict.forward:
        raise ValueError(
            f"{verdict.forward}. Weights can be read: heads_of(model). For runs, load a model with "
            "other settings."
        )
    require_nothing(verdict.logits)
    return verdict


def require_right_weights(model: Any) -> None:
    """Raise a `ValueError` if the bridge may have read the weights of the model in a wrong way."""
    require_nothing(first_use(model).weights)


def require_additive_layers(model: Any, verdict: Verdict | None = None) -> None:
    """Raise a `ValueError` if the last stream is not the sum of what the layers write."""
    verdict = first_use(model) if verdict is None else verdict
    if verdict.forward or verdict.stream:
        raise ValueError(
            f"The stream of this kind of model ({architecture_of(model)}) is not known to be the "
            f"sum of its parts, so wires cannot be cut either: {verdict.forward or verdict.stream}. "
            "Other things work all the same: run(model, tokens, without='L0H1') and effect with "
            "heads or embeddings, attribution, patterns and z of a run, heads_of(model)."
        )


def require_norms_before_layers(model: Any) -> None:
    """Raise a `ValueError` if it is not known through which norm heads and MLPs read the stream."""
    problem = first_use(model).reads
    if problem:
        raise ValueError(
            f"It is not known what heads and MLPs read in this kind of model "
            f"({architecture_of(model)}): {problem}. Runs, patterns and z of a run, and "
            "heads_of(model) work all the same."
        )


def require_replaceable_mlp(model: Any, layer: int, verdict: Verdict) -> None:
    """Raise a `ValueError` if what an MLP writes cannot be replaced alone."""
    problem = verdict.mlps.get(layer)
    if problem:
        raise ValueError(
            f"'L{layer} MLP' cannot be replaced in this kind of model ({architecture_of(model)}): "
            f"{problem}. Heads and embeddings can be replaced: run(model, tokens, "
            f"without='L{layer}H0')."
        )


def require_separate_heads(model: Any, layer: int, verdict: Verdict) -> None:
    """Raise a `ValueError` if the inputs of a layer's heads cannot be replaced one by one."""
    problem = verdict.heads.get(layer)
    if problem:
        raise ValueError(
            f"Inputs of heads and wires into them cannot be cut in layer {layer} of this kind of "
            f"model ({architecture_of(model)}): {problem}. Whole heads and MLPs can be replaced: "
            f"run(model, tokens, without='L{layer}H0')."
        )


def require_unembedding_of_stream(model: Any) -> None:
    """Raise a `ValueError` if embedding or unembedding have another width than the stream."""
    width, d_model = model.W_U.shape[0], model.cfg.d_model
    if width != d_model:
        raise ValueError(
            f"The embeddings of this model ({architecture_of(model)}) have {width} dimensions, and "
            f"its stream has {d_model}: a projection stands between them, so what heads write "
            "cannot be multiplied with W_U. Runs with heads replaced, patterns and attribution "
            "work all the same, such as run(model, tokens).pattern('L0H0')."
        )


def require_sum_of_logits(model: Any) -> None:
    """Raise a `ValueError` for a model whose logits are no sum over its parts."""
    verdict = first_use(model)
    if verdict.unembedding:
        rest = "" if verdict.stream else "; residual.decompose splits its residual stream"
        raise ValueError(
            f"The logits of this model are no sum over its parts, because {verdict.unembedding}{rest}."
        )


def require_nothing(problem: str) -> None:
    """Raise a `ValueError` with this text, unless it is empty."""
    if problem:
        raise ValueError(problem)


@torch.no_grad()
def examine(model: Any) -> Verdict:
    """Run a model and the model that it wraps, and compare."""
    tokens, seen = probe(model), {}
    with undisturbed(model), own_hooks_only(model):
        try:
            with listening(model.hook_dict, seen):
                logits = model(tokens)
        except Exception as problem:
            return Verdict(
                f"transformer-lens cannot run this model ({architecture_of(model)}): {first_line(problem)}"
            )
        difference = difference_of_logits(model, tokens, logits)
    config = getattr(model.original_model, "config", None)
    is_of_scores = any(getattr(config, name, usual) != usual for name, usual in SCORE_SETTINGS)
    stream, mlps, heads = compare_layers(model, seen)
    return Verdict(
        logits=difference,
        weights="" if is_of_scores else difference,
        reads=compare_reads(model, seen),
        stream=stream,
        unembedding=compare_unembedding(model, logits, seen),
        mlps=mlps,
        heads=heads,
    )


def probe(model: Any) -> Int[Tensor, "batch pos"]:
    """Two short rows of random tokens, the same each time."""
    generator = torch.Generator().manual_seed(0)
    size = (2, min(model.cfg.n_ctx, 8))
    return torch.randint(model.W_E.shape[0], size, generator=generator).to(model.W_E.device)


def architecture_of(model: Any) -> str:
    """What kind of model this is."""
    return str(model.cfg.architecture or type(model.original_model).__name__)


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
    handles = [
        point.register_forward_hook(partial(keep, names)) for point, names in names_of_point.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# The model behind the bridge


def difference_of_logits(model: Any, tokens: Tensor, logits: Tensor) -> str:
    """How the logits of a bridge differ from those of the model that it wraps, or ""."""
    from transformers import PreTrainedModel

    wrapped = model.original_model
    if not isinstance(wrapped, PreTrainedModel):
        return ""  # a native model wraps no other
    try:
        with unwrapped(model):
            result = wrapped(tokens)
    except Exception:
        return ""  # it cannot run without the bridge, so there is nothing to compare with
    ours, theirs = (values.float().log_softmax(-1) for values in (logits, result.logits))
    excess = (ours - theirs).abs().max()
    # rounding errors grow with the size of the logits
    size = result.logits.float().abs().max().clamp_min(1)
    if not excess > max(1e-3, 8 * torch.finfo(logits.dtype).eps) * size:
        return ""
    return (
        f"The TransformerBridge computes another model than the one that it wraps "
        f"({architecture_of(model)}): on random tokens the log-probabilities differ by up to "
        f"{excess:.2g} nats.{unusual_settings(wrapped.config)} So runs, cuts and patterns would be "
        "those of another model. Load the model with transformers, or with another setting."
    )


SCORE_SETTINGS = (
    ("scale_attn_weights", True),
    ("scale_attn_by_inverse_layer_idx", False),
    ("slow_but_exact", False),
)
"""Settings of GPT-2 and BLOOM that leave the meaning of weights as it is, with their usual values."""
UNUSUAL_SETTINGS = {
    **dict(SCORE_SETTINGS),
    "attn_logit_softcapping": None,
    "clip_qkv": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
"""Settings that transformer-lens may leave out, each with its usual value."""


def unusual_settings(config: Any) -> str:
    """The settings of a configuration that may be the reason for a difference, as a sentence."""
    found = []
    for name, usual in UNUSUAL_SETTINGS.items():
        value = getattr(config, name, usual)
        if value != usual:
            found.append(f"{name}={value!r}")
    return f" Its configuration says {', '.join(found)}." if found else ""


@contextmanager
def unwrapped(model: Any) -> Iterator[None]:
    """Inside, the wrapped model has its own modules again, with the weights of the bridge."""
    swapped: list[tuple[nn.Module, str, Any]] = []

    def unwrap(module: nn.Module, seen: set[nn.Module]) -> None:
        seen.add(module)
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            inner = original_of(child)
            if inner is not child:
                swapped.append((module, name, child))
                module._modules[name] = inner
            if inner not in seen:
                unwrap(inner, seen)

    joints = {}
    for block in model.blocks:
        for bridge in block._modules.values():
            joints |= rejoined(bridge)
    try:
        unwrap(model.original_model, set())
        for owner, name in joints:
            swapped.append((owner, name, owner._modules[name]))
            owner._modules[name] = joints[owner, name]
        yield
    finally:
        for module, name, child in reversed(swapped):
            module._modules[name] = child


def original_of(module: Any) -> Any:
    """The module that a bridge stands for; a layer that circuitkit has put in stays as it is."""
    while isinstance(module, GeneralizedComponent):
        inner = module.__dict__.get("_original_component") or module._modules.get(
            "_original_component"
        )
        if inner is None or type(inner).__module__.startswith("circuitkit"):
            return module
        module = inner
    return module


class Rejoined(nn.Module):
    """A linear layer whose outputs are those of several ones, in another order."""

    parts: list[Any]

    def __init__(self, parts: list[Any], order: Int[Tensor, " output"]) -> None:
        super().__init__()
        object.__setattr__(self, "parts", parts)  # the modules belong to the bridge
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        """The outputs in the order of the joint layer."""
        return torch.cat([part(x) for part in self.parts], -1)[..., self.order]


def rejoined(bridge: Any) -> dict[tuple[nn.Module, str], Rejoined]:
    """What stands in for the joint projections of a layer that a bridge has split and changed.

    GPT-2 and others compute queries, keys and values with one matrix. A bridge splits it into three
    copies. If their weights were changed (folded norms, an edit), the joint matrix is out of date.
    """
    for split_name, parts_names in (
        ("split_qkv_matrix", ("q", "k", "v")),
        ("split_gate_up_matrix", ("gate", "in")),
    ):
        split = getattr(bridge, "__dict__", {}).get(split_name)
        if split is not None:
            parts = [original_of(bridge._modules[name]) for name in parts_names]
            return rejoin(bridge.original_component, split, parts)
    return {}


def rejoin(owner: Any, split: Any, parts: list[Any]) -> dict[tuple[nn.Module, str], Rejoined]:
    """The joint projection of a module, made of its parts, if these have changed since the split."""
    with torch.random.fork_rng(devices=[]):  # a new linear layer draws weights
        old = split(owner)
    if all(is_same_linear(one, other) for one, other in zip(old, parts, strict=True)):
        return {}
    projections: dict[str, Any] = owner._modules
    for name, module in projections.items():
        weight = getattr(original_of(module), "weight", None)
        n_outputs = sum(len(part.weight) for part in parts)
        if weight is None or weight.ndim != 2 or n_outputs not in weight.shape:
            continue
        # each output is marked by its number, and the split shows where the numbers go
        numbers = torch.arange(n_outputs, dtype=torch.float64, device=weight.device)
        is_row = weight.shape[0] == n_outputs
        marked = (numbers[:, None] if is_row else numbers).expand(weight.shape).contiguous()
        stand_in = StandIn(owner, name, marked, numbers)
        with torch.random.fork_rng(devices=[]):
            marks = torch.cat([part.weight[:, 0] for part in split(stand_in)]).long()
        return {(owner, name): Rejoined(parts, marks.argsort())}
    return {}


class StandIn:
    """A module of which one projection has other weights."""

    def __init__(self, module: nn.Module, name: str, weight: Tensor, bias: Tensor) -> None:
        self.module = module
        own = getattr(module, name)
        projection: Any = nn.Module()
        projection.weight = nn.Parameter(weight, requires_grad=False)
        has_bias = getattr(own, "bias", None) is not None
        number = nn.Parameter(bias, requires_grad=False) if has_bias else None
        projection.register_parameter("bias", number)
        self.__dict__[name] = projection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def is_same_linear(one: Any, other: Any) -> bool:
    """Whether two linear layers have the same weights."""
    for name in ("weight", "bias"):
        values = [getattr(layer, name, None) for layer in (one, other)]
        present = [value for value in values if value is not None]
        if len(present) == 2 and not torch.equal(*present):
            return False
        if len(present) == 1 and bool(present[0].any()):
            return False
    return True


# What layers write and what they add


def compare_layers(
    model: Any, seen: Mapping[str, Tensor]
) -> tuple[str, dict[int, str], dict[int, str]]:
    """Why the last stream is not the sum of what is written, and what cannot be replaced, by layer.

    The result is empty texts and dictionaries if layers add what they write.
    """
    layers = [LayerSeen(model, layer, seen) for layer in range(len(model.blocks))]
    mlps = {here.layer: here.problem_of_mlp() for here in layers if here.problem_of_mlp()}
    heads = {here.layer: here.problem_of_heads() for here in layers if here.problem_of_heads()}
    stream, previous = "", None
    for here in layers:
        problem = here.problem()
        if not problem and previous is not None and not is_close(previous, here.begin, previous):
            problem = "it does not read what the layer before it has written"
        if problem and not stream:
            stream = (
                f"layer {here.layer} of this model does not simply add its output to the residual "
                f"stream, because {problem}"
            )
        previous = here.end
    last = seen.get(final_hook(model))
    if not stream and last is None:
        stream = "it has no norm before its unembedding, where the last stream is read"
    elif not stream and f"again {final_hook(model)}" in seen:
        stream = "its last norm is used in other places as well"
    elif not stream and previous is not None and not is_close(previous, last, previous):
        stream = "something stands between its last layer and its last norm"
    return stream, mlps, heads


def compare_reads(model: Any, seen: Mapping[str, Tensor]) -> str:
    """Why the norm before a head or an MLP is not `ln1` or `ln2`, or ""."""
    if norms_close_layers(model):
        return ""
    for layer in range(len(model.blocks)):
        here = LayerSeen(model, layer, seen)
        for part, norm in (("attn", "ln1"), ("mlp", "ln2")):
            read, normed = here.at(f"{part}.hook_in"), here.at(f"{norm}.hook_out")
            if read is None or normed is None or read.numel() != normed.numel():
                continue
            if not is_close(read, normed.view_as(read), read):
                return f"in layer {layer}, {norm} does not stand before the {part}"
    return ""


def is_close(one: Any, other: Any, like: Any) -> bool:
    """Whether two values agree up to the rounding errors of a third one."""
    if one is None or other is None or one.shape != other.shape:
        return False
    tolerance = max(1e-3, 4 * torch.finfo(like.dtype).eps) * like.float().abs().max()
    return not (one.float() - other.float()).abs().max() > tolerance


@dataclass(frozen=True)
class LayerSeen:
    """What the hooks of one layer have seen."""

    model: Any
    layer: int
    seen: Mapping[str, Tensor]

    def at(self, hook: str) -> Any:
        """The value at a hook of the layer; None if it has none."""
        return self.seen.get(f"blocks.{self.layer}.{hook}")

    @property
    def begin(self) -> Any:
        """The stream that the layer reads."""
        return self.at("hook_in")

    @property
    def end(self) -> Any:
        """The stream behind the layer."""
        return self.at("hook_out")

    def written(self, part: str) -> Any:
        """What the attention or the MLP writes, behind the norm behind it."""
        behind, hook = (
            ("ln1_post", "attn.o.hook_out") if part == "attn" else ("ln2_post", "mlp.hook_out")
        )
        value = self.at(f"{behind}.hook_out")
        value = self.at(hook) if value is None else value
        if value is None or self.begin is None or value.numel() != self.begin.numel():
            return None
        return value.view_as(self.begin)

    def has(self, part: str) -> bool:
        """Whether the layer has attention, or an MLP."""
        return part in self.model.blocks[self.layer]._modules

    def steps(self) -> list[tuple[Any, Any, list[str]]]:
        """The stream before and behind each step of the layer, and what writes in between."""
        parts = [part for part in ("attn", "mlp") if self.has(part)]
        if norms_close_layers(self.model):
            return [
                (self.begin, self.at("ln1.hook_in"), ["attn"]),
                (self.at("ln1.hook_out"), self.at("ln2.hook_in"), ["mlp"]),
            ]
        middle = self.at("ln2.hook_in")
        if middle is None and "ln2_post" in self.model.blocks[self.layer]._modules:
            middle = self.at("mlp.hook_in")
        if middle is None or self.model.cfg.parallel_attn_mlp or len(parts) < 2:
            return [(self.begin, self.end, parts)]
        middle = middle.view_as(self.begin)
        return [(self.begin, middle, ["attn"]), (middle, self.end, ["mlp"])]

    def problem(self) -> str:
        """Why the layer does not add what its parts write, or ""."""
        if self.at("hook_in") is not None and f"again blocks.{self.layer}.hook_in" in self.seen:
            return "it is called more than once"
        for before, after, parts in self.steps():
            values = [self.written(part) for part in parts]
            if before is None or after is None or any(value is None for value in values):
                return f"transformer-lens does not show what its {' and '.join(parts)} writes"
            if not is_close(before + sum(values), after, after):
                return f"what its {' and '.join(parts)} writes is not what the stream gains"
        return ""

    def problem_of_mlp(self) -> str:
        """Why the output of the MLP cannot be replaced alone, or ""."""
        if not self.has("mlp"):
            return ""
        written = self.written("mlp")
        if written is None:
            return "transformer-lens does not show what it writes"
        if is_close(written, self.end, written):
            return "its module returns the residual stream with its output added"
        return ""

    def problem_of_heads(self) -> str:
        """Why a head cannot be computed again alone: a norm mixes what the heads have gathered."""
        attention = self.model.blocks[self.layer]._modules.get("attn")
        modules = getattr(getattr(attention, "original_component", None), "_modules", {})
        norms = [name for name in modules if "norm" in name and name[0] not in "qkv"]
        if not norms:
            return ""
        pattern, z, v = (self.at(f"attn.hook_{name}") for name in ("pattern", "z", "v"))
        if pattern is None or z is None or v is None:
            return f"transformer-lens does not show what {norms[0]} does"
        n_heads = pattern.shape[1]
        z = z.reshape(*z.shape[:2], n_heads, -1)  # [batch, pos, head, d_head]
        v = v.reshape(*v.shape[:2], -1, z.shape[-1]).transpose(1, 2)  # [batch, group, pos, d_head]
        v = v.repeat_interleave(n_heads // v.shape[1], dim=1)
        if is_close((pattern.to(v) @ v).transpose(1, 2), z, z):
            return ""
        return f"a norm ({norms[0]}) divides by the size of what all heads have gathered"


def compare_unembedding(model: Any, logits: Tensor, seen: Mapping[str, Tensor]) -> str:
    """Why the logits are no product of the last stream, behind its norm, with `W_U`, or ""."""
    cap = getattr(model.cfg, "output_logits_soft_cap", None) or -1.0
    if "mlm_head" in model._modules:
        return "a network (mlm_head) computes them"
    if cap > 0:
        return f"they are capped at {cap:g}"
    read, given = seen.get("ln_final.hook_out"), seen.get("unembed.hook_in")
    read = given if read is None else read
    if read is None or read.shape[-1] != model.cfg.d_model:
        return "a projection stands between the last stream and the unembedding"
    if given is not None and not is_close(read, given, given):
        return "a network stands between the last norm and the unembedding"
    product = read.float() @ model.W_U.float()
    if model.b_U is not None:
        product = product + model.b_U.float()
    if is_close(product, logits, logits):
        return ""
    factor = float((product * logits).sum() / product.square().sum())
    if not is_close(factor * product, logits, logits):
        return "they are not the last stream times W_U"
    config = getattr(model.original_model, "config", None)
    names = [name for name in ("logit_scale", "logits_scaling") if hasattr(config, name)]
    because = f" ({names[0]}={getattr(config, names[0])} in its configuration)" if names else ""
    return f"they are multiplied by {factor:.4g}{because}"
