"""An MLP as attention heads of internal dimension 1: each neuron chooses between itself and a bias token."""

from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Natural, NonNegative, Positive, must, one_dtype, public
from circuitkit.anatomy import Neurons
from circuitkit.conversion._head_sum import Activation, HeadSum, NeuronHeadCount, head_sum

_knobs = "activation", "heads_per_neuron", "max_error", "sharpness"
_fixed = "no other knob, because a HeadSum fixes its heads already"


@public
@must(lambda a, *knobs: not isinstance(a, HeadSum) or not any(knobs) or _fixed, *_knobs)
@one_dtype("W_in", "W_out", "b_in", "b_out")
def neuron_heads(
    W_in: Float[Tensor, "d_model d_mlp"],
    W_out: Float[Tensor, "d_mlp d_model"],
    b_in: Float[Tensor, " d_mlp"] | None = None,
    b_out: Float[Tensor, " d_model"] | None = None,
    activation: Activation | HeadSum = "silu",
    heads_per_neuron: NeuronHeadCount | None = None,
    *,
    max_error: NonNegative | None = None,
    sharpness: Positive | None = None,
    layer: Natural = 0,
) -> Neurons:
    """The MLP `act(x W_in + b_in) W_out + b_out` as attention heads, one or a few per neuron.

    `activation` is a name or a `HeadSum` of your own; the knobs are those of `head_sum`. **Error**: `.bound`.
    **Source**: "Attention-Only Transformers", Theorem 2, with the bias token first, both biases kept and several heads per neuron.

    >>> import torch
    >>> mlp = neuron_heads(torch.eye(2), torch.eye(2), activation="silu")
    >>> mlp(torch.tensor([[0.0, 1.0]]))
    tensor([[0.0000, 0.7311]])
    """
    if not isinstance(activation, HeadSum):
        activation = head_sum(activation, heads_per_neuron, max_error, sharpness)
    return Neurons(W_in, W_out, b_in, b_out, activation, layer)
