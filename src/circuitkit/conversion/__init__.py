"""MLPs as attention: neurons as heads, the sources' constructions, whole models converted with a bound.

Every construction stands beside its proof and its error. How a promise is kept may change; what is promised changes only with
the claim that rests on it.
"""

from circuitkit.anatomy._neurons import with_bias_token
from circuitkit.conversion._convert import to_attention_only
from circuitkit.conversion._head_sum import (
    activation_error,
    gate_sum,
    gated_neuron_heads,
    generalized_silu,
    head_sum,
    neuron_heads,
)
from circuitkit.conversion._model import literal_stream, read_neuron
from circuitkit.conversion._omega import (
    OmegaMLP,
    OmegaWarning,
    choose_omega,
    omega_mlp,
    omega_window,
)
from circuitkit.conversion._paper import (
    MaskedHead,
    centred_with_gain,
    direct_sum,
    layer_norm,
    masked_softmax,
    norm_of_first,
    post_norm_layers,
    rms_norm,
    rms_with_gain,
    theorem2,
    theorem6,
    theorem7,
)
from circuitkit.conversion._promise import stored_study

__all__ = [
    "MaskedHead", "OmegaMLP", "OmegaWarning", "activation_error", "centred_with_gain", "choose_omega", "direct_sum",
    "gate_sum", "gated_neuron_heads", "generalized_silu", "head_sum", "layer_norm", "literal_stream", "masked_softmax",
    "neuron_heads", "norm_of_first", "omega_mlp", "omega_window", "post_norm_layers", "read_neuron", "rms_norm",
    "rms_with_gain", "stored_study", "theorem2", "theorem6", "theorem7", "to_attention_only", "with_bias_token",
]  # fmt: skip
