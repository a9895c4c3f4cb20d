"""MLPs as attention: neurons as heads, and whole models converted within a bound."""

from circuitkit.conversion.activations import HeadSum, gate_sum, head_sum
from circuitkit.conversion.convert import to_attention_only
from circuitkit.conversion.neurons import Neurons, neuron_heads, with_bias_token

__all__ = [
    "HeadSum",
    "Neurons",
    "gate_sum",
    "head_sum",
    "neuron_heads",
    "to_attention_only",
    "with_bias_token",
]
