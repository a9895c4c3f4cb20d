"""MLPs as attention: neurons as heads, the sources' constructions, whole models converted with a bound.

Every construction stands beside its proof and its error. How a promise is kept may change; what is promised changes only
with the claim that rests on it.
"""

from circuitkit.anatomy._neurons import with_bias_token as with_bias_token
from circuitkit.conversion._convert import to_attention_only as to_attention_only
from circuitkit.conversion._gated import gate_sum as gate_sum
from circuitkit.conversion._gated import gated_neuron_heads as gated_neuron_heads
from circuitkit.conversion._head_sum import activation_error as activation_error
from circuitkit.conversion._head_sum import generalized_silu as generalized_silu
from circuitkit.conversion._head_sum import head_sum as head_sum
from circuitkit.conversion._neuron_heads import neuron_heads as neuron_heads
from circuitkit.conversion._norms import centred_with_gain as centred_with_gain
from circuitkit.conversion._norms import layer_norm as layer_norm
from circuitkit.conversion._norms import norm_of_first as norm_of_first
from circuitkit.conversion._norms import post_norm_layers as post_norm_layers
from circuitkit.conversion._norms import rms_norm as rms_norm
from circuitkit.conversion._norms import rms_with_gain as rms_with_gain
from circuitkit.conversion._omega import OmegaMLP as OmegaMLP
from circuitkit.conversion._omega import OmegaWarning as OmegaWarning
from circuitkit.conversion._omega import choose_omega as choose_omega
from circuitkit.conversion._omega import mask_as_weights as mask_as_weights
from circuitkit.conversion._omega import omega_mlp as omega_mlp
from circuitkit.conversion._omega import omega_window as omega_window
from circuitkit.conversion._paper import augmented_head as augmented_head
from circuitkit.conversion._paper import bias_trick as bias_trick
from circuitkit.conversion._paper import direct_sum as direct_sum
from circuitkit.conversion._paper import masked_softmax as masked_softmax
from circuitkit.conversion._paper import remark3 as remark3
from circuitkit.conversion._paper import theorem2 as theorem2
from circuitkit.conversion._paper import theorem6 as theorem6
from circuitkit.conversion._paper import theorem7 as theorem7
from circuitkit.conversion._reading import read_neuron as read_neuron
from circuitkit.conversion._real import stored_study as stored_study
from circuitkit.conversion._stream import literal_stream as literal_stream

__all__ = [
    "OmegaMLP",
    "OmegaWarning",
    "activation_error",
    "augmented_head",
    "bias_trick",
    "centred_with_gain",
    "choose_omega",
    "direct_sum",
    "gate_sum",
    "gated_neuron_heads",
    "generalized_silu",
    "head_sum",
    "layer_norm",
    "literal_stream",
    "mask_as_weights",
    "masked_softmax",
    "neuron_heads",
    "norm_of_first",
    "omega_mlp",
    "omega_window",
    "post_norm_layers",
    "read_neuron",
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
