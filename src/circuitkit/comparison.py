"""What the check at first use compares: a bridge with its model, and layers with what they add.

The functions get what one run has seen, by the names of the hooks. A comparison says in words what
differs; an empty string means that nothing does.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from circuitkit.bridge import (
    Model,
    final_hook,
    listeners,
    norms_close_layers,
    original_of,
    submodules,
    unwrapped,
)


def architecture_of(model: Model) -> str:
    """What kind of model this is."""
    return str(model.cfg.architecture or type(model.original_model).__name__)


# The model behind the bridge


def known_difference(model: Model) -> str:
    """The setting for which transformer-lens is known to compute another model, as a message, or "".

    With small weights, or weights before training, the difference may be as small as rounding errors.
    """
    config = getattr(model.original_model, "config", None)
    kind = str(getattr(config, "model_type", ""))
    for name, usual, kinds in (
        # transformer-lens divides all the same
        ("scale_attn_weights", True, ("gpt2", "gpt_bigcode")),
        # transformers does not cap
        ("attn_logit_softcapping", None, ("gemma3", "gemma3_text")),
    ):
        value = getattr(config, name, usual)
        if kind in kinds and value != usual:
            return another_model(model, f"transformer-lens does not follow {name}={value!r}.")
    return ""


def another_model(model: Model, difference: str) -> str:
    """The message that a bridge is not the model that it wraps."""
    return (
        f"The TransformerBridge computes another model than the one that it wraps "
        f"({architecture_of(model)}): {difference} So runs, cuts and patterns would be "
        "those of another model. Load the model with transformers, or with another setting."
    )


def difference_of_results(
    model: Model, tokens: Tensor, logits: Tensor, seen: Mapping[str, Tensor]
) -> str:
    """How logits or patterns of a bridge differ from those of the model that it wraps, or ""."""
    from transformers import PreTrainedModel

    wrapped = model.original_model
    if not isinstance(wrapped, PreTrainedModel):
        return ""  # a native model wraps no other
    patterns: dict[int, Tensor] = {}
    try:
        with keeping_patterns(model, patterns), unwrapped(model):
            result = wrapped(tokens)
    except Exception:
        return ""  # it cannot run without the bridge, so there is nothing to compare with
    settings = unusual_settings(wrapped.config)
    if excess := excess_of_logits(logits, result.logits.float().log_softmax(-1)):
        return another_model(
            model,
            f"on random tokens the log-probabilities differ by up to {excess:.2g} nats.{settings}",
        )
    for layer, right in patterns.items():
        ours = seen.get(f"blocks.{layer}.attn.hook_pattern")
        if ours is None or ours.shape != right.shape:
            continue
        excess = float((ours.float() - right.float()).abs().max())
        if excess > max(1e-4, 8 * torch.finfo(logits.dtype).eps):
            return another_model(
                model,
                f"on random tokens the patterns of layer {layer} differ by up to {excess:.2g}.{settings}",
            )
    return ""


@contextmanager
def keeping_patterns(model: Model, patterns: dict[int, Tensor]) -> Iterator[None]:
    """Inside, the patterns that attention modules of transformers return are kept, by layer.

    `output_attentions` would leave hooks behind, and with them each pattern comes twice later.
    """

    def keep(layer: int, _module: Any, _given: Any, result: Any) -> None:
        for value in result if isinstance(result, tuple) else ():
            if isinstance(value, Tensor) and value.ndim == 4:
                patterns[layer] = value  # [batch, head, dst, src]

    attention = [submodules(block).get("attn") for block in model.blocks]
    with listeners(
        (original_of(module), partial(keep, layer))
        for layer, module in enumerate(attention)
        if module is not None
    ):
        yield


def attention_seen(model: Model, seen: Mapping[str, Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
    """By layer, what its heads have read in a run, and their patterns, where both are shown."""
    found = {}
    for layer in range(len(model.blocks)):
        here = LayerSeen(model, layer, seen)
        read, pattern = here.at("attn.hook_in"), here.at("attn.hook_pattern")
        if read is not None and pattern is not None and pattern.ndim == 4:
            found[layer] = read, pattern
    return found


def excess_of_logits(logits: Tensor, right: Tensor) -> float:
    """By how much log-probabilities differ beyond rounding errors; 0 if they do not."""
    excess = float((logits.float().log_softmax(-1) - right).abs().max())
    # rounding errors grow with the size of the logits
    size = max(1.0, float(logits.float().abs().max()), float(right.abs().max()))
    # NaN is reported where it is read
    return excess if excess > max(TOLERANCE, 8 * torch.finfo(logits.dtype).eps) * size else 0.0


TOLERANCE = 1e-4
"""Of log-probabilities in float32, relative to the largest logit."""
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


# What layers write and what they add


def compare_layers(
    model: Model, seen: Mapping[str, Tensor]
) -> tuple[str, dict[int, str], dict[int, str]]:
    """Why the last stream is not the sum of what is written, and what cannot be replaced, by layer.

    The result is empty texts and dictionaries if layers add what they write.
    """
    layers = [LayerSeen(model, layer, seen) for layer in range(len(model.blocks))]
    mlps = {here.layer: problem for here in layers if (problem := here.problem_of_mlp())}
    heads = {here.layer: problem for here in layers if (problem := here.problem_of_heads())}
    stream, previous = "", None
    for here in layers:
        problem = here.problem()
        if not problem and previous is not None and not is_close(previous, here.begin, previous):
            problem = "it does not read what the layer before it has written"
        if problem and not stream:
            stream = (
                f"layer {here.layer} of this model does not simply add its output to the residual "
                f"stream, because {problem}{settings_in_words(model, 'residual', '_out_multiplier')}"
            )
        previous = here.end
    last = seen.get(final_hook(model))
    if not stream and last is None:
        stream = "it has no norm before its unembedding, where the last stream is read"
    elif not stream and f"again {final_hook(model)}" in seen:
        stream = "its last norm is used in other places as well"
    elif not stream and previous is not None and not is_close(previous, last, previous):
        stream = "something lies between its last layer and its last norm"
    return stream, mlps, heads


def compare_reads(model: Model, seen: Mapping[str, Tensor]) -> str:
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

    model: Model
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
        return part in submodules(self.model.blocks[self.layer])

    def steps(self) -> list[tuple[list[str], Any, Any, Any]]:
        """Of each step: what writes, what it writes, what the stream gains, and how large the stream is.

        The last three are None where transformer-lens does not show one of them.
        """
        steps = []
        for before, after, parts in self.streams():
            values = [before, after, *map(self.written, parts)]
            if not parts or any(value is None for value in values):
                steps.append((parts, None, None, None))
            else:
                # a layer may cancel what is large before it
                size = torch.maximum(before.abs(), after.abs())
                steps.append((parts, sum(values[2:]), after - before, size))
        return steps

    def streams(self) -> list[tuple[Any, Any, list[str]]]:
        """The stream before and behind each step of the layer, and what writes in between."""
        parts = [part for part in ("attn", "mlp") if self.has(part)]
        if norms_close_layers(self.model):
            return [
                (self.begin, self.at("ln1.hook_in"), ["attn"]),
                (self.at("ln1.hook_out"), self.at("ln2.hook_in"), ["mlp"]),
            ]
        middle = self.at("ln2.hook_in")
        if middle is None and "ln2_post" in submodules(self.model.blocks[self.layer]):
            middle = self.at("mlp.hook_in")
        if middle is None or self.model.cfg.parallel_attn_mlp or len(parts) < 2:
            return [(self.begin, self.end, parts)]
        middle = middle.view_as(self.begin)
        return [(self.begin, middle, ["attn"]), (middle, self.end, ["mlp"])]

    def problem(self) -> str:
        """Why the layer does not add what its parts write, or ""."""
        if self.at("hook_in") is not None and f"again blocks.{self.layer}.hook_in" in self.seen:
            return "it is called more than once"
        if self.model.cfg.parallel_attn_mlp and not norms_close_layers(self.model):
            middle = self.at("ln2.hook_in")
            middle = None if middle is None else middle.view_as(self.begin)
            if middle is not None and not is_close(middle, self.begin, self.begin):
                return "its MLP reads what its attention wrote, and model.cfg.parallel_attn_mlp is True"
        for parts, written, gained, size in self.steps():
            if written is None:
                return f"transformer-lens does not show what its {' and '.join(parts) or 'block'} writes"
            if not is_close(written, gained, size):
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
        attention = submodules(self.model.blocks[self.layer]).get("attn")
        inner = getattr(attention, "original_component", None)
        modules = {} if inner is None else submodules(inner)
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


def compare_unembedding(model: Model, logits: Tensor, seen: Mapping[str, Tensor]) -> str:
    """Why the logits are no product of the last stream, behind its norm, with `W_U`, or ""."""
    cap = getattr(model.cfg, "output_logits_soft_cap", None) or -1.0
    if "mlm_head" in submodules(model):
        return "a network (mlm_head) computes them"
    if cap > 0:
        return f"they are capped at {cap:g}"
    read, given = seen.get("ln_final.hook_out"), seen.get("unembed.hook_in")
    read = given if read is None else read
    if read is None or read.shape[-1] != model.cfg.d_model:
        return "a projection lies between the last stream and the unembedding"
    if given is not None and not is_close(read, given, given):
        return "a network lies between the last norm and the unembedding"
    product = product_with_unembedding(model, read)
    if is_close(product, logits, logits):
        return ""
    factor = factor_between(model, product, logits, logits)
    if factor is None:
        return "they are not the last stream times W_U"
    return f"they are multiplied by {factor:.4g}{settings_in_words(model, 'logit', 'lm_head')}"


def product_with_unembedding(model: Model, read: Tensor) -> Tensor:
    """What the unembedding makes of what it reads, in float32."""
    product = read.float() @ model.W_U.float()
    return product if model.b_U is None else product + model.b_U.float()


# Numbers by which a configuration multiplies values

ACCOUNTED = (
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "attention_out_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
    "logit_scale",
    "scale_emb",
    "scale_depth",
)
"""Settings whose effect `measured_factors` measures, or (`attention_multiplier`) `heads_of` reads."""


def multipliers(model: Model) -> dict[str, Any]:
    """The settings of a configuration that multiply values, with their values other than 1."""
    config = getattr(model.original_model, "config", None)
    found = {}
    for name, value in getattr(config, "__dict__", {}).items():
        numbers = value if isinstance(value, list | tuple) else [value]
        is_multiplier = name in ACCOUNTED or "multiplier" in name
        if is_multiplier and any(isinstance(n, int | float) and n != 1 for n in numbers):
            found[name] = value
    return found


def settings_in_words(model: Model, *kinds: str) -> str:
    """The multipliers of these kinds, as " (residual_multiplier=0.2 in its configuration)", or ""."""
    found = [
        f"{name}={value!r}"
        for name, value in multipliers(model).items()
        if any(kind in name for kind in kinds)
    ]
    return f" ({', '.join(found)} in its configuration)" if found else ""


def start_of_stream(
    model: Model, tokens: Tensor, seen: Mapping[str, Tensor]
) -> tuple[Tensor, Any, Any]:
    """What the embedding writes, the first stream without positions, and the first stream."""
    first = seen.get("embed_ln.hook_in" if "embed_ln" in submodules(model) else "blocks.0.hook_in")
    # what the module returns: for some models its hook shows a multiple of it
    embedding = model.embed(tokens)
    gained = first
    for module in ("pos_embed", "token_type_embed"):
        if gained is not None and f"{module}.hook_out" in seen and module in submodules(model):
            gained = gained - seen[f"{module}.hook_out"]
    return embedding, gained, first


def compare_embedding(model: Model, start: tuple[Tensor, Any, Any]) -> str:
    """Why what the embedding writes is not what the stream begins with, or ""."""
    embedding, gained, first = start
    if gained is None or gained.shape != embedding.shape or not embedding.any():
        return ""
    if factor_between(model, embedding, gained, first) is not None:
        return ""
    return (
        "the first layer reads more than the embedding of its tokens, such as positions that "
        "transformer-lens does not show"
    )


def measured_factors(
    model: Model, start: tuple[Tensor, Any, Any], logits: Tensor, seen: Mapping[str, Tensor]
) -> dict[str, float | None]:
    """By what a model multiplies what its parts write, and its logits; see `Verdict`."""
    embedding, gained, first = start
    factors = {"embed": factor_between(model, embedding, gained, first)}
    for layer in range(len(model.blocks)):
        for parts, written, gained, size in LayerSeen(model, layer, seen).steps():
            factor = factor_between(model, written, gained, size)
            factors.update({f"L{layer} {part}": factor for part in parts})
    read = seen.get("ln_final.hook_out", seen.get("unembed.hook_in"))
    product = None
    if read is not None and read.shape[-1] == model.W_U.shape[0]:
        product = product_with_unembedding(model, read)
    factors["unembed"] = factor_between(model, product, logits, logits)
    has_settings = bool(multipliers(model))
    return {
        name: factor
        for name, factor in factors.items()
        if factor != 1 and (has_settings or factor is not None)
    }


def factor_between(model: Model, written: Any, gained: Any, like: Any) -> float | None:
    """The number by which values are multiplied to give others, up to the rounding errors of `like`.

    The number that the configuration says is taken, if the measured one is close to it.
    """
    if written is None or gained is None or written.shape != gained.shape:
        return None
    written, gained = written.float(), gained.float()
    eps = torch.finfo(like.dtype).eps
    noise = 16 * eps * like.float().abs().max()
    if not written.abs().max() > noise:
        return None
    factor = float((written * gained).sum() / written.square().sum())
    known = [1.0]
    for value in multipliers(model).values():
        if isinstance(value, int | float) and value:
            known += [float(value), 1 / value]
    nearest = min(known, key=lambda number: abs(number - factor))
    if abs(nearest - factor) <= max(1e-3, 4 * eps) * abs(factor):
        factor = nearest
    difference = (factor * written - gained).abs().max()
    return factor if difference <= max(1e-3, 4 * eps) * gained.abs().max() + noise else None
