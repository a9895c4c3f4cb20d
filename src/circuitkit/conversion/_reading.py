"""What turns a neuron on and what it writes: the full QK and OV circuits of a neuron-head, in tokens."""

from typing import NamedTuple

import torch
from jaxtyping import Float

from circuitkit._contract import Converted, Count, public
from circuitkit._heads import Heads
from circuitkit.conversion._gated import GatedNeuronHeads


class NeuronReading(NamedTuple):
    """Token ids with their scores, largest first: `W_E W_in` of one neuron for reading, `W_out W_U` for writing.

    **Source**: see `read_neuron`.
    """

    name: str
    on: tuple[tuple[int, float], ...]
    """Tokens that turn the neuron on: what it reads from each token's embedding behind its norm, bias included."""
    off: tuple[tuple[int, float], ...]
    """Tokens that turn it off, most negative first."""
    writes: tuple[tuple[int, float], ...]
    """Tokens whose logits it raises for each unit it is on."""
    lowers: tuple[tuple[int, float], ...]
    """Tokens whose logits it lowers, most negative first."""


@public
def read_neuron(model: Converted, head: str, k: Count = 10) -> NeuronReading:
    """The two rank-one circuits of a neuron-head as lists of tokens: `W_E W_in` (QK) and `W_out W_U` (OV).

    Read from embeddings alone: what earlier layers add to the stream is left out, and so is the last norm's scale.
    A gated neuron is read by its gate. **Error**: exact for what it states. **Source**: the framework paper's full circuits,
    here with one direction on either side.
    """
    layer, n, _ = model.neuron_place(head)
    weights = model.neuron_heads(layer)
    W, b = (weights.W_gate, weights.b_gate) if isinstance(weights, GatedNeuronHeads) else (weights.W_in, weights.b_in)
    with torch.no_grad():
        norm = getattr(model.blocks[layer], "ln2", None)
        stream = model.W_E if norm is None else norm(model.W_E[None])[0]
        reads = stream @ W[:, n] + (0 if b is None else b[n])
        writes = weights.W_out[n] @ model.W_U
    ends = [_top(values, k) for values in (reads, -reads, writes, -writes)]
    signed = [end if i % 2 == 0 else tuple((token, -score) for token, score in end) for i, end in enumerate(ends)]
    return NeuronReading(head, *signed)


def _top(values: torch.Tensor, k: int) -> tuple[tuple[int, float], ...]:
    best = values.double().topk(min(k, len(values)))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


class Augmented(NamedTuple):
    """A converted model's heads with tables of their size, for tools that take "a model" and read its weights.

    The bias token and the bias coordinate come last. **Source**: `X (+) [1]` of "Attention-Only Transformers".
    """

    heads: Heads
    """All neuron-heads, on d_model + 1 coordinates."""
    W_E: Float[torch.Tensor, "token_or_bias d_model_and_1"]
    """The embedding with one more row, the bias token's."""
    W_U: Float[torch.Tensor, "d_model_and_1 token_or_bias"]
    """The unembedding: it does not read the bias coordinate, and never predicts the bias token."""


@public
def augmented(model: Converted) -> Augmented:
    """What `full_qk`, `full_ov` and `copying_score` of chapter 2 need to run on neuron-heads.

    `full_qk(augmented(model), "L1N3")` has one column that is not zero, the bias token's: minus what turns the neuron
    on. Embeddings are as the model holds them, not behind a norm. **Error**: exact. **Source**: `X (+) [1]` of the paper.
    """
    W_E, W_U = model.W_E.detach(), model.W_U.detach()
    return Augmented(model.heads, torch.block_diag(W_E, W_E.new_ones(1, 1)), torch.nn.functional.pad(W_U, (0, 1, 0, 1)))
