"""MLPs as attention: neurons as heads, whole models converted within a bound, the sources' constructions."""

from circuitkit.conversion.activations import HeadSum, gate_sum, generalized_silu, head_sum
from circuitkit.conversion.bounds import ConversionReport, LayerReport, stored_study
from circuitkit.conversion.convert import (
    literal_route,
    literal_stream,
    to_attention_only,
)
from circuitkit.conversion.neurons import Neurons, neuron_heads, with_bias_token
from circuitkit.conversion.omega import (
    OmegaMLP,
    omega_mlp,
    omega_window,
)
from circuitkit.conversion.paper import (
    MaskedHead,
    augmented_head,
    bias_trick,
    centred_with_gain,
    direct_sum,
    layer_norm,
    mask_as_weights,
    masked_softmax,
    norm_of_first,
    post_norm_layers,
    remark3,
    rms_norm,
    rms_with_gain,
    theorem2,
    theorem6,
    theorem7,
)

__all__ = [
    "ConversionReport",
    "HeadSum",
    "LayerReport",
    "MaskedHead",
    "Neurons",
    "OmegaMLP",
    "augmented_head",
    "bias_trick",
    "centred_with_gain",
    "direct_sum",
    "gate_sum",
    "generalized_silu",
    "head_sum",
    "layer_norm",
    "literal_route",
    "literal_stream",
    "mask_as_weights",
    "masked_softmax",
    "neuron_heads",
    "norm_of_first",
    "omega_mlp",
    "omega_window",
    "post_norm_layers",
    "remark3",
    "rms_norm",
    "rms_with_gain",
    "stored_study",
    "theorem2",
    "theorem6",
    "theorem7",
    "to_attention_only",
    "with_bias_token",
]
