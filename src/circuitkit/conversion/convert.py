"""`to_attention_only`: a copy of a model in which every MLP is a layer of attention heads."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.bridge import (
    Model,
    copy_model,
    name_hooks,
    submodules,
    undisturbed,
    without_wrapper,
)
from circuitkit.checks import checked, require_at_least, require_finite
from circuitkit.conversion.activations import (
    ACTIVATIONS,
    HeadSum,
    gate_sums,
    head_sums,
    with_at_most,
)
from circuitkit.conversion.bounds import bound_of, largest_reads, measured_error
from circuitkit.conversion.neurons import NeuronLayer, bias_of
from circuitkit.first_use import random_rows, require_norms_before_layers, require_same_model
from circuitkit.names import Name
from circuitkit.parts import n_heads, norm_before
from circuitkit.reading import converted_neurons
from circuitkit.rows import to_tokens

if TYPE_CHECKING:
    import pandas as pd


@checked
def to_attention_only(
    model: TransformerBridge,
    *,
    heads_per_neuron: int | None = None,
    max_error: float | None = None,
    probe: Int[Tensor, "batch pos"] | None = None,
) -> TransformerBridge:
    """A copy of a model with attention heads in the place of every MLP.

    In each MLP, the activation function is replaced by a module of heads that choose between their
    own token and a bias token. The result is an ordinary `TransformerBridge` with the same weights
    and the same hooks; `blocks.0.mlp.neurons.hook_pattern` and its like are new.

    SiLU is exact with one head per neuron. ReLU takes one head that is as sharp as the precision
    allows. GELU takes 1 to 8 heads. Gated MLPs take 2, 4, 8, 16 or 32, fitted to the range of each gate,
    which follows from the norm in front of the MLP.

    Parameters
    ----------
    model : a `TransformerBridge` with MLPs. It is not changed, and hooks on it are not copied.
    heads_per_neuron : at most how many heads a neuron becomes. Give this number or the next one.
    max_error : the largest error allowed in an entry of a layer's output, in exact arithmetic; the
        fewest heads within it are taken
    probe : token ids `[batch, pos]` on which errors are measured; by default two rows of random
        tokens

    Returns
    -------
    model : a `TransformerBridge`. Its attribute `report` is a DataFrame with a row for each layer:
        how many heads it has, the largest error `activation_error` of an activation, the largest
        error `bound` that an entry of the layer's output can have, and the largest one `measured`
        on the probe tokens. All errors are those of exact arithmetic; rounding is not included.

    Raises
    ------
    ValueError : if an MLP cannot be converted, or not within the error

    Notes
    -----
    Error: `report.bound` for each entry of a layer's output in exact arithmetic. Source:
    "Attention-Only Transformers", Theorem 4, corrected: norms act on the original coordinates.

    Examples
    --------
    >>> import circuitkit as ck
    >>> model = ck.to_attention_only(ck.load_model("two-layer-mlp"), heads_per_neuron=5)
    >>> model.report.neuron_heads.tolist()
    [2560, 2560]
    """
    if (heads_per_neuron is None) == (max_error is None):
        raise ValueError(
            "to_attention_only needs either heads_per_neuron or max_error, because each decides the "
            "other. Write for example heads_per_neuron=5."
        )
    if max_error is not None:
        require_at_least(0, max_error=max_error)
    find_mlps(model)  # reports every problem before anything is copied
    require_same_model(model)
    require_norms_before_layers(model)
    converted = copy_model(model)
    tokens = random_rows(converted, 16) if probe is None else to_tokens(converted, probe)
    for mlp in find_mlps(converted):
        put_heads(mlp, heads_per_neuron, max_error)
    name_hooks(converted)
    converted.eval()
    converted.report = report_of(converted, tokens)
    return converted.train(model.training)


# The MLPs of a model


@dataclass(frozen=True, eq=False)
class FoundMLP:
    """One MLP of a model, and where it applies its activation function.

    Parameters
    ----------
    layer : the number of its layer
    bridge : its bridge, which holds the weights
    norm : the norm in front of it, or None
    owner : the module that applies the activation function
    attribute : the name of the function there
    activation : which function it is
    is_gated : whether a neuron has a gate in addition to its value
    """

    layer: int
    bridge: Any
    norm: Any
    owner: nn.Module
    attribute: str
    activation: str
    is_gated: bool


def find_mlps(model: Model) -> list[FoundMLP]:
    """The MLP of each layer, or a `ValueError` that lists everything that cannot be converted."""
    mlps, problems = [], []
    for layer, block in enumerate(model.blocks):
        if "mlp" not in submodules(block):
            continue
        try:
            mlps.append(find_mlp(model, layer))
        except ValueError as problem:
            problems.append(f"Block {layer}: {problem}")
    if problems:
        raise ValueError("This model cannot be converted. " + " ".join(problems))
    if not mlps:
        raise ValueError("This model has no MLPs, so there is nothing to convert.")
    return mlps


def is_mixture(mlp: Any) -> bool:
    """Whether an MLP chooses between experts."""
    names = {name.rsplit(".", 1)[-1].lower() for name, _ in mlp.named_modules()}
    return "moe" in type(mlp).__name__.lower() or bool(names & {"experts", "router"})


def find_mlp(model: Model, layer: int) -> FoundMLP:
    """The MLP of one layer."""
    if converted_neurons(model, layer) is not None:
        raise ValueError("Its MLP is converted already; see model.report.")
    block: Any = model.blocks[layer]
    kind = type(block.mlp).__name__
    if is_mixture(block.mlp):
        raise ValueError(
            f"{kind} is a mixture of experts. Its router makes a discontinuous choice, which no sum "
            "of heads follows within a bound. Convert a dense model."
        )
    places = activation_places(block)
    if len(places) != 1:
        seen = ", ".join(f"{type(owner).__name__}.{name}" for owner, name in places) or "none"
        raise ValueError(
            f"{kind} should apply one activation function, but these were found: {seen}. Give its "
            "weights to neuron_heads."
        )
    owner, attribute = places[0]
    if getattr(owner, "ln", None) is not None:
        raise ValueError(
            "A LayerNorm between activation and output mixes the neurons, so they are not heads."
        )
    for name, weight in block.mlp.named_parameters():
        require_finite(weight.detach(), without_wrapper(name))
    is_gated = getattr(block.mlp, "W_gate", None) is not None
    n_read, n_written = block.mlp.W_in.shape[1], block.mlp.W_out.shape[0]
    if n_read != n_written:
        raise ValueError(
            f"{kind} reads {n_read} numbers and writes with {n_written} neurons, so it has a gate that "
            "transformer-lens does not show. Give its weights to neuron_heads."
        )
    activation = name_of_activation(getattr(owner, attribute), is_gated)
    norm = norm_before(model, Name("MLP", layer))
    return FoundMLP(layer, block.mlp, norm, owner, attribute, activation, is_gated)


# What transformers and transformer-lens call the activation function of an MLP.
ACTIVATION_ATTRIBUTES = (
    "act",
    "act_fn",
    "act_func",
    "activation",
    "activation_fn",
    "intermediate_act_fn",
    "nonlinearity",
)


def activation_places(block: Any) -> list[tuple[nn.Module, str]]:
    """Every module of a block's MLP that holds an activation function, and under which name."""
    # where a family has no module for the MLP (OPT), the bridge holds the whole layer
    attention = submodules(block).get("attn")
    seen = set(attention.modules()) if attention is not None else set()
    places = []
    for module in block.mlp.original_component.modules():
        if module in seen:
            continue
        seen.add(module)
        for name in ACTIVATION_ATTRIBUTES:
            function = getattr(module, name, None)
            if not callable(function) or isinstance(function, (nn.Linear, type)):
                continue
            if isinstance(function, nn.Module):
                # such a module may hold the function under one of these names once more
                seen.update(function.modules())
            places.append((module, name))
    return places


def name_of_activation(function: Any, is_gated: bool) -> str:
    """Which activation function this is, by its values on a grid."""
    x = torch.linspace(-9, 9, 181, dtype=torch.float64)
    with torch.no_grad():
        values = function(x.clone())
    for name, activation in ACTIVATIONS.items():
        if name == "sigmoid" and not is_gated:
            continue
        if values.shape == x.shape and (values - activation(x)).abs().max() < 1e-6:
            return name
    called = getattr(function, "__name__", type(function).__name__)
    raise ValueError(
        f"The activation {called!r} is not supported. Heads can compute {sorted(ACTIVATIONS)}."
    )


# Heads for an MLP


def put_heads(mlp: FoundMLP, heads_per_neuron: int | None, max_error: float | None) -> None:
    """Replace the activation function of an MLP by the heads of its neurons."""
    bridge = mlp.bridge
    values = largest_reads(mlp.norm, bridge.W_in, bias_of(bridge, "in"))
    try:
        if mlp.is_gated:
            sums = gate_sums(mlp.activation, reach_of_gates(mlp))
        else:
            sums = head_sums(mlp.activation, sharpest_relu(values, bridge.W_in.dtype))
        if heads_per_neuron is not None:
            terms = with_at_most(heads_per_neuron, sums)
        else:
            assert max_error is not None  # to_attention_only has seen that one of them is given
            bounds = [bound_of(bridge.W_out, terms, values) for terms in sums]
            terms = within(max_error, sums, bounds)
    except ValueError as problem:
        raise ValueError(f"Block {mlp.layer}: {problem}") from None
    neurons = NeuronLayer(bridge, terms, mlp.layer)
    setattr(mlp.owner, mlp.attribute, neurons)
    bridge.add_module("neurons", neurons)


def within(max_error: float, sums: list[HeadSum], bounds: list[float]) -> HeadSum:
    """The shortest sum whose bound on the layer's output is no larger than this."""
    for terms, bound in zip(sums, bounds, strict=True):
        if bound <= max_error:
            return terms
    raise ValueError(
        f"max_error={max_error:.3g} cannot be met. With {len(sums[-1])} heads per neuron, which is "
        f"the most, an entry of the layer's output can be wrong by {bounds[-1]:.3g}."
    )


def reach_of_gates(mlp: FoundMLP) -> Float[Tensor, " d_mlp"]:
    """How large each gate of an MLP can become."""
    reaches = largest_reads(mlp.norm, mlp.bridge.W_gate, bias_of(mlp.bridge, "gate"))
    if mlp.activation != "sigmoid" and not bool(reaches.isfinite().all()):
        raise ValueError(
            f"Heads follow a {mlp.activation!r} gate on a finite range, and no norm in front of "
            "this MLP limits what the gate reads."
        )
    return reaches


def sharpest_relu(largest_values: Float[Tensor, " d_mlp"], dtype: torch.dtype) -> float:
    """The sharpness of a head that is as close to ReLU as the precision can show.

    Past this sharpness, the rounding of what is stored is larger than the error. Without a norm
    there is no limit of what is read; 4096 is more than neurons usually read.
    """
    largest = max(1.0, float(largest_values.nan_to_num(posinf=4096.0).max()))
    sharpest = 8 / (torch.finfo(dtype).eps * largest)
    return 2.0 ** math.floor(math.log2(sharpest))  # a power of two scales without rounding


# Measuring


@torch.no_grad()
def report_of(model: Model, tokens: Int[Tensor, "batch pos"]) -> "pd.DataFrame":
    """Heads, bound and measured error of each converted layer, as a table."""
    import pandas as pd  # takes half a second

    layers = [
        layer for layer in range(len(model.blocks)) if converted_neurons(model, layer) is not None
    ]
    hooks = [
        f"blocks.{layer}.mlp.{hook}"
        for layer in layers
        for hook in ("hook_in", "neurons.hook_in", "hook_out")
    ]
    with undisturbed(model):
        _, cache = model.run_with_cache(tokens, names_filter=hooks)
    rows = [row_of(model, layer, cache) for layer in layers]
    return pd.DataFrame(rows, pd.Index(layers, name="layer"))


def row_of(model: Model, layer: int, cache: Any) -> dict[str, Any]:
    """What the report says of one layer."""
    neurons, name = converted_neurons(model, layer), f"blocks.{layer}.mlp"
    if f"{name}.neurons.hook_in" not in cache:
        kind = type(model.blocks[layer].mlp).__name__
        advice = f"{model.cfg.architecture} cannot be converted; give its weights to neuron_heads."
        if getattr(model, "compatibility_mode", False):
            advice = "Convert the model before enable_compatibility_mode."
        raise ValueError(
            f"The MLP of block {layer} ({kind}) computes its activation function itself and does "
            f"not call it as a module, so heads cannot take its place. {advice}"
        )
    x, output = cache[f"{name}.hook_in"], cache[f"{name}.hook_out"]
    # in the coarsest number format, the same sum in another order differs by about 1%
    if (neurons(x) - output).abs().max() > 0.05 * output.abs().max():
        raise ValueError(
            f"The MLP of block {layer} computes more than its activation and its matrices, so its "
            "neurons alone are not heads. Give its weights to neuron_heads."
        )
    norm = norm_before(model, Name("MLP", layer))
    largest_values = largest_reads(norm, neurons.W_in, neurons.b_in)
    return {
        "activation": neurons.terms.activation,
        "attention_heads": n_heads(model, layer),
        "neuron_heads": len(neurons),
        "heads_per_neuron": len(neurons.terms),
        "activation_error": neurons.terms.error,
        "bound": bound_of(neurons.W_out, neurons.terms, largest_values),
        "measured": measured_error(neurons, x),
    }
