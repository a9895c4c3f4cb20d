"""Heads out of a model: `heads_of`, and how each architecture masks, rotates and normalises.

`Heads` of a model are copies of its own weights, together with all that turns queries and keys into
patterns. To add an architecture, begin at `ARCHITECTURES` and `layer_heads`.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from circuitkit.bridge import Model, submodules
from circuitkit.checks import checked, require_bridge, require_finite
from circuitkit.first_use import VERDICTS, require_own_keys, require_right_weights
from circuitkit.heads import WEIGHTS, Heads, Mask, Rotary, first_difference, stack, weights_of
from circuitkit.names import Name, parse, unknown

__all__ = ["heads_of"]


ARCHITECTURES = (
    "TransformerLensNative",
    "GPT2LMHeadModel",
    "GPTNeoForCausalLM",
    "GPTNeoXForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "PhiForCausalLM",
    "OPTForCausalLM",
    "BertForMaskedLM",
    "Olmo2ForCausalLM",
)
"""Architectures whose patterns this file computes as the model does. Tests compare the two for
each of them. Heads of other architectures have weights, and no patterns."""


SWITCHES = {
    "use_bidirectional_attention": False,  # Gemma 3
    "is_causal": True,
    "scale_attn_weights": True,  # GPT-2
    "clip_qkv": None,
}
"""Settings of a configuration that change masks or scores, each with its usual value. With another
value, heads have no patterns."""


@checked
def heads_of(model: Model, names: str | Sequence[str] | None = None) -> Heads:
    """The attention heads of a model, and its neuron-heads where they are asked for by name.

    Parameters
    ----------
    model : a `TransformerBridge`
    names : names such as `["L0H1", "L1H3"]`; by default all attention heads, layer by layer. In a
        converted model, `"L0N3"` gives the heads of a neuron, `"L0N3.1"` one of them, `"L0 MLP"`
        those of a whole layer.

    Returns
    -------
    The heads, with copies of the model's weights. Heads behind a norm read the *normalised*
    stream. If the heads do not all score alike (windows in some layers, attention heads together
    with neuron-heads), they have weights and no patterns, and `positions` is `"other"`.
    Neuron-heads read and write `d_model + 1` coordinates, of which the last is 1 on the bias token.
    Their `layers` is l + 0.5 in layer l, because they read what the heads of layer l wrote.
    Attention heads that are read together with neuron-heads get the same coordinates.

    Raises
    ------
    ValueError : for names that the model does not have, and models without such heads

    Notes
    -----
    The weights are exact. Source: the model's own `W_Q`, `W_K`, `W_V`, `W_O`.

    Examples
    --------
    >>> import circuitkit as ck
    >>> ck.heads_of(ck.load_model("two-layer"), ["L0H1", "L1H3"])
    Heads([L0H1, L1H3], n=2, d_model=160, d_head=32, mask='causal')
    """
    require_bridge(model)
    require_right_weights(model)
    if names is not None:
        parts = named_heads(model, [names] if isinstance(names, str) else list(names))
    else:
        parts = [layer_heads(model, layer) for layer in attention_layers(model)]
    if not parts:
        raise ValueError(
            "No head is named, or this model has no attention heads. Give a model with attention "
            "layers, such as load_model('two-layer'), and names such as ['L0H1']."
        )
    if len(parts) == 1:
        # the weights of one layer are views of the model's own
        return parts[0].to(parts[0].W_Q.dtype, copy=True)
    if first_difference(parts):
        parts = weights_only(parts)
    return stack(*parts)


def attention_layers(model: Model) -> list[int]:
    """The layers that have attention heads."""
    return [layer for layer, block in enumerate(model.blocks) if "attn" in submodules(block)]


def named_heads(model: Model, names: list[str]) -> list[Heads]:
    """Heads by name, one stack for each run of names from the same layer."""
    parsed = [head_name(model, name) for name in names]
    with_neurons = any(name.kind != "H" for name in parsed)
    parts = []
    for (layer, in_attention), group in groupby(
        parsed, lambda name: (name.layer or 0, name.kind == "H")
    ):
        if in_attention:
            heads = layer_heads(model, layer)[[str(name) for name in group]]
            heads = widened(heads) if with_neurons else heads
        else:
            heads = named_neuron_heads(model, layer, list(group))
            # neurons read what the heads of their layer wrote, unless both read the same stream
            place = layer if model.cfg.parallel_attn_mlp else layer + 0.5
            heads = replace(heads, layers=(place,) * len(heads))
        parts.append(heads)
    return parts


def require_attention_head(model: Model, text: str) -> None:
    """Raise a `ValueError` for the name of a neuron or an MLP where attention is needed."""
    if head_name(model, text).kind != "H":
        raise ValueError(
            f"{text!r} is no attention head, and this function needs one, such as 'L0H1': it compares "
            "sources of different positions, and a neuron attends only to its own token and to the "
            "bias token."
        )


def head_name(model: Model, text: str) -> Name:
    """The parsed name of an attention head, a neuron, a neuron-head or a converted layer."""
    name = parse(text)[0]
    is_head = name.kind in ("H", "N", "MLP") and str(name) == text
    layers = attention_layers(model) if name.kind == "H" else range(len(model.blocks))
    if not is_head or name.layer not in layers:
        numbers = range(model.cfg.n_heads)
        heads = [f"L{layer}H{n}" for layer in attention_layers(model) for n in numbers]
        raise unknown("head", text, heads)
    return name


def named_neuron_heads(model: Model, layer: int, names: list[Name]) -> Heads:
    """The heads of some neurons of a converted layer, read from the module in the MLP's place."""
    converted = converted_neurons(model, layer)
    if converted is None:
        raise ValueError(
            f"Layer {layer} has no neuron-heads, because its MLP was not converted. Convert the "
            "model first: to_attention_only(model)."
        )
    whole_neurons = [name.partition(".")[0] for name in converted.names]
    known = dict.fromkeys([f"L{layer} MLP", *converted.names, *whole_neurons])
    rows = []
    for name in names:
        if str(name) not in known:
            raise unknown("neuron-head", str(name), known)
        rows.extend(neuron_rows(model, name))
    with torch.no_grad():
        return converted.heads(rows)


def converted_neurons(model: Model, layer: int | None) -> Any:
    """The `Neurons` of a converted layer, or None if its MLP is still an MLP.

    A converted MLP has a module `neurons` in the place of its activation function.
    """
    mlp = None if layer is None else submodules(model.blocks[layer]).get("mlp")
    module = None if mlp is None else submodules(mlp).get("neurons")
    return None if module is None else module.neurons


@dataclass(frozen=True, eq=False)
class MlpNeurons:
    """The neurons of an MLP that is still an MLP.

    They have the fields of a converted layer's `Neurons` that parts and runs need. What a neuron
    gathers is what `W_out` multiplies: the activation, times the other branch in a gated MLP.
    """

    W_out: Float[Tensor, "d_mlp d_model"]
    b_out: Float[Tensor, " d_model"] | None
    terms: tuple[None] = (None,)
    """One name for each neuron."""


def neurons_of(model: Model, layer: int | None) -> Any:
    """The neurons of a layer, converted or not; None if it has no MLP or a mixture of experts."""
    converted = converted_neurons(model, layer)
    if converted is not None or layer is None:
        return converted
    mlp = submodules(model.blocks[layer]).get("mlp")
    if mlp is None or "out" not in submodules(mlp):
        return None
    bias = getattr(mlp.out, "bias", None)
    return MlpNeurons(mlp.W_out, bias if isinstance(bias, Tensor) else None)


def neuron_rows(model: Model, name: Name) -> list[int]:
    """The numbers of a neuron's heads in its layer; of all heads for a whole MLP."""
    neurons = neurons_of(model, name.layer)
    n_terms = len(neurons.terms)
    if name.kind == "MLP":
        return list(range(len(neurons.W_out) * n_terms))
    first = (name.number or 0) * n_terms
    if name.term is not None:
        return [first + name.term]
    return list(range(first, first + n_terms))


def widened(heads: Heads) -> Heads:
    """Attention heads on the coordinates of neuron-heads: they neither read nor write the last."""
    wide = {name: pad(getattr(heads, name), (0, 0, 0, 1)) for name in ("W_Q", "W_K", "W_V")}
    return replace(heads, **wide, W_O=pad(heads.W_O, (0, 1)))


def weights_only(parts: list[Heads]) -> list[Heads]:
    """Heads that score in different ways, without patterns, so that `stack` accepts them.

    All get the largest `d_head` among them, and the same neutral value in each field about scores.
    """
    reasons = [part.why_no_patterns for part in parts if part.why_no_patterns]
    neutral = without_scores(reasons[0] if reasons else DIFFERENT_SCORES)
    if len({part.scale for part in parts}) > 1:
        neutral["scale"] = 1.0
    if len({part.mask for part in parts}) > 1:
        neutral["mask"] = "causal"
    d_head = max(part.d_head for part in parts)
    result = []
    for part in parts:
        extra = d_head - part.d_head
        wide = {name: pad(weight, (0, extra)) for name, weight in weights_of(part).items()}
        wide["W_O"] = pad(part.W_O, (0, 0, 0, extra))
        result.append(replace(part, **wide | neutral))
    return result


def without_scores(reason: str) -> dict[str, Any]:
    """The fields of heads that have weights and no patterns."""
    fields: dict[str, Any] = {"positions": "other", "why_no_patterns": reason, "norm_over": 1}
    return fields | dict.fromkeys(("turn", "gain_Q", "gain_K", "norm_eps", "cap", "window"))


DIFFERENT_FROM_RUN = (
    "on random tokens those of layer {} differ by up to {:.2g} from the patterns that the model "
    "computes. A setting in model.cfg or in a module of the model was changed after loading, and only "
    "one of the two follows it; set it back or load the model again"
)
DIFFERENT_SCORES = (
    "they score in different ways, so take heads of one layer, heads_of(model, ['L0H0', 'L0H1'])"
)


def layer_heads(model: Model, layer: int) -> Heads:
    """All heads of one layer, with all that happens to their queries and keys; weights are views."""
    require_own_keys(model)
    attention = model.blocks[layer].attn
    n_heads, _, d_head = attention.W_Q.shape
    weights = {}
    for name in WEIGHTS:
        value = getattr(attention, name, None)
        if not isinstance(value, Tensor):
            continue
        if name.startswith("b_") and not value.any():
            continue  # a bias of zeros is stored as None
        require_finite(value, f"{name} of layer {layer}")
        weights[name] = value.detach()[group_rows(n_heads, len(value))]
    heads = Heads(
        tuple(f"L{layer}H{head}" for head in range(n_heads)),
        **weights | scoring_of(model, layer),
        layers=(layer,) * n_heads,
        scale=score_divisor(attention.original_component, d_head),
        of=model_name(model),
    )
    reason = difference_from_run(model, layer, heads)
    return replace(heads, **without_scores(reason)) if reason else heads


@torch.no_grad()
def difference_from_run(model: Model, layer: int, heads: Heads) -> str:
    """How the patterns of these heads differ from those of the run at first use, or "".

    A setting may have been changed that this file reads and the model does not, or the other way.
    """
    verdict = VERDICTS[model].verdict if model in VERDICTS else None
    if verdict is None or layer not in verdict.attention or heads.positions == "other":
        return ""
    if layer not in verdict.patterns:
        read, right = verdict.attention[layer]
        exact = heads.to(torch.promote_types(heads.W_Q.dtype, torch.float32))
        query, key = (exact.side(side, read.to(exact.W_Q)) for side in ("Q", "K"))
        ours = exact.pattern_of(query, key)
        # rounding errors grow with queries and keys
        size = float(query.norm(dim=-1).max() * key.norm(dim=-1).max()) / exact.scale
        excess = float((ours - right).abs().max()) if ours.shape == right.shape else 0.0
        is_wrong = excess > max(1e-4, 8 * torch.finfo(right.dtype).eps * max(1.0, size))
        verdict.patterns[layer] = DIFFERENT_FROM_RUN.format(layer, excess) if is_wrong else ""
    return verdict.patterns[layer]


def group_rows(n_heads: int, n_groups: int) -> slice | list[int]:
    """Which key and value matrix each head reads with; neighbours share one (grouped queries)."""
    if n_groups == n_heads:
        return slice(None)
    return [head * n_groups // n_heads for head in range(n_heads)]


def scoring_of(model: Model, layer: int) -> dict[str, Any]:
    """How the heads of a layer turn queries and keys into patterns."""
    attention = model.blocks[layer].attn
    module = attention.original_component
    reason = why_no_patterns(model, module)
    if reason:
        return {"positions": "other", "why_no_patterns": reason}
    turn = rotary_of(model, module)
    # the module's own number: what model.cfg says is not read by it; native models write -1 for none
    caps = (
        getattr(module, f"attn_{name}", None) for name in ("logit_softcapping", "scores_soft_cap")
    )
    cap = next((float(value) for value in caps if value), 0.0)
    return {
        "positions": "absolute" if turn is None else "rotary",
        "turn": turn,
        **(norms_of_heads(model, attention) if "q_norm" in submodules(module) else {}),
        "mask": mask_of(model),
        "window": window_of(module, layer),
        "cap": cap if cap > 0 else None,
    }


def why_no_patterns(model: Model, module: Any) -> str:
    """Why the patterns of an attention module are not computed here; "" if they are."""
    architecture = str(model.cfg.architecture)
    if architecture not in ARCHITECTURES:
        return f"{architecture} is not one of the architectures in circuitkit.reading.ARCHITECTURES"
    config = getattr(model.original_model, "config", None)
    for name, usual in SWITCHES.items():
        value = getattr(config, name, usual)
        if value not in (usual, None):
            return f"the configuration of the model says {name}={value!r}, which is not read here"
    norms = {name for name in submodules(module) if "norm" in name}
    has_known_norms = norms in (set(), {"q_norm", "k_norm"})
    is_absolute = model.cfg.positional_embedding_type == "standard"
    has_known_positions = is_absolute or rotary_of(model, module) is not None
    if hasattr(module, "gates") or not has_known_norms or not has_known_positions:
        return "their layer has gates, or norms or positions of a kind that is not read here"
    return ""


def mask_of(model: Model) -> Mask:
    """What the heads of a model see: an encoder that runs as a decoder (BERT) is causal."""
    is_encoder = str(getattr(model.cfg, "attention_dir", "causal")) == "bidirectional"
    config = getattr(model.original_model, "config", None)
    is_decoder = getattr(config, "is_decoder", False)
    return "full" if is_encoder and not is_decoder else "causal"


def score_divisor(module: Any, d_head: int) -> float:
    """What scores are divided by: the attention module's own number where it holds one."""
    if isinstance(getattr(module, "scaling", None), float):
        return 1.0 / module.scaling  # transformers multiplies
    if isinstance(getattr(module, "scale", None), float):
        return module.scale  # native models divide
    if hasattr(getattr(module, "config", None), "attention_layers"):
        return 1.0  # GPT-Neo does not divide
    return math.sqrt(d_head)


def window_of(module: Any, layer: int) -> int | None:
    """How many positions a head sees, or None if it sees all that the mask allows."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "attention_layers", None)
    if config is not None and kinds:  # GPT-Neo: "global" or "local" for each layer
        return int(config.window_size) if kinds[layer] == "local" else None
    if getattr(module, "sliding_window", 0) is None:
        return None  # the windows of this layer's model are in other layers
    if hasattr(module, "sliding_window"):
        # the mask is made from the configuration
        return getattr(config, "sliding_window", module.sliding_window)
    # other families may have this setting, and do not use it
    has_window = getattr(config, "model_type", "") in ("mistral", "mixtral")
    return getattr(config, "sliding_window", None) if has_window else None


def norms_of_heads(model: Model, attention: Any) -> dict[str, Any]:
    """The norms of queries and keys."""
    n_heads, _, d_head = attention.W_Q.shape
    norms = {
        side: submodules(attention)[f"{side.lower()}_norm"].original_component for side in "QK"
    }
    fields: dict[str, Any] = {}
    for side, norm in norms.items():
        gain = norm.weight.detach()
        if model.cfg.rmsnorm_uses_offset:
            gain = 1 + gain  # Gemma stores the difference from 1
        # one row for all heads, one for each group, or one for each head
        rows = gain.to(attention.W_Q.dtype).view(-1, d_head)
        fields[f"gain_{side}"] = rows[group_rows(n_heads, len(rows))]
    is_over_layer = norms["Q"].weight.numel() > d_head
    fields["norm_over"] = n_heads if is_over_layer else 1
    eps = getattr(norms["Q"], "variance_epsilon", None)
    return {**fields, "norm_eps": float(norms["Q"].eps if eps is None else eps)}


def rotary_of(model: Model, module: Any) -> Rotary | None:
    """The rotation of a layer's queries and keys; None without one, or if its kind is not known."""
    if model.cfg.positional_embedding_type != "rotary":
        return None
    if getattr(module, "rotary", None) is not None:
        return native_rotary(module.rotary, model.cfg)
    return half_split_rotary(model.rotary_emb.original_component, module)


def native_rotary(table: Any, cfg: Any) -> Rotary | None:
    """The rotation of a native model: neighbouring dimensions (0, 1), (2, 3), ... are a plane."""
    if isinstance(getattr(cfg, "rope_scaling", None), dict):
        return None
    dims = torch.arange(0, table.rotary_dim, 2, device=table.cos_cached.device)
    angles = 1.0 / table.effective_base ** (dims.float() / table.rotary_dim)
    return Rotary(torch.stack([dims, dims + 1], 1), angles)


def half_split_rotary(table: Any, module: Any) -> Rotary | None:
    """The rotation of Llama, NeoX and most others: dimension i and i + n/2 of the first n.

    `table` is the model's rotary module; Gemma 3 has one set of angles for each kind of layer.
    """
    config = table.config
    parameters = getattr(config, "rope_parameters", None) or {}
    kind = getattr(module, "layer_type", None)
    prefix = f"{kind}_" if hasattr(table, f"{kind}_inv_freq") else ""
    if prefix:
        parameters = parameters.get(kind, parameters)
    if parameters.get("rope_type") in ("dynamic", "longrope"):
        return None  # the angles change with the length of the text
    angles = getattr(table, f"{prefix}inv_freq").float()
    half = len(angles)
    dims = torch.arange(2 * half, device=angles.device)
    gain = float(getattr(table, f"{prefix}attention_scaling"))
    return Rotary(dims.view(2, half).T, angles, gain)


def model_name(model: Model) -> str:
    """The model's name and a mark of its embedding, because two models may have one name."""
    name = getattr(model.cfg, "model_name", None)
    name = "" if name in (None, "custom", "native") else name
    flat = model.W_E.detach().flatten()
    sample = flat[:: max(1, len(flat) // 64)].float().tolist()
    mark = hashlib.sha256(repr(sample).encode()).hexdigest()[:4]
    return f"{name} ({mark})".strip()
