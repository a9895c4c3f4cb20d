"""Theorem 4 carried out: the whole stream of a converted model on N+1 tokens and D+1 coordinates."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Converted, ids, public
from circuitkit._heads import Heads, allowed_pairs
from circuitkit.conversion._neuron_heads import with_bias_token


@public
@ids()
def literal_stream(
    model: Converted, tokens: Int[Tensor, " pos"]
) -> Float[Tensor, "sublayer pos_and_bias d_model_and_1"]:
    """The stream before the first sublayer and after each one, bias token first, computed from `Heads` alone.

    Each sublayer adds the sum of its heads' results on the normalised stream, and its output bias on the real tokens.
    Norms act on the original coordinates (the repair of Theorem 4); ordinary heads have the mask `[1] (+) causal`.
    For native models with serial blocks and learned positions, one sequence at a time: for reading and proving, slow.
    **Error**: that of the conversion; the last row without its bias equals `hook_resid_post` of the last block.
    **Source**: "Attention-Only Transformers", proof of Theorem 4.
    """
    from circuitkit.conversion._model import is_parallel

    ordinary = _silent_at_the_bias_token(model.attention_heads)
    if ordinary.positions != "absolute" or any(is_parallel(block) for block in model.blocks):
        raise ValueError("literal_stream needs serial blocks and positions in the stream; read others from their cache")
    _, cache = model.run_with_cache(tokens[None])
    stream = [with_bias_token(cache["blocks.0.hook_resid_pre"][0])]
    allowed = torch.block_diag(torch.ones(1, 1), torch.ones(len(tokens), len(tokens))).bool()
    allowed &= allowed_pairs(ordinary.mask, len(tokens) + 1)
    for layer, block in enumerate(model.blocks):
        here = [i for i, name in enumerate(ordinary.names) if name.startswith(f"L{layer}H")]
        normed, heads = _normed(stream[-1], block.ln1), ordinary[here]
        pattern = heads.scores(normed).masked_fill(~allowed.to(normed.device), -torch.inf).softmax(-1)
        stream.append(_added(stream[-1], heads.results(normed, pattern).sum(0), model.b_O[layer]))
        neurons = model.neuron_heads(layer)
        written = neurons.heads.results(_normed(stream[-1], block.ln2)).sum(0)
        stream.append(_added(stream[-1], written, neurons.b_out))
    return torch.stack(stream).detach()


def _silent_at_the_bias_token(heads: Heads) -> Heads:
    """Values with a bias `b_V` get it undone on the bias token, by the row of `W_V` that only the bias token reads."""
    if heads.b_V is None:
        return heads
    W_V = heads.W_V.clone()
    W_V[:, -1] = -heads.b_V
    return replace(heads, W_V=W_V)


def _normed(stream: Tensor, norm: torch.nn.Module) -> Tensor:
    return torch.cat([stream[:1], torch.cat([norm(stream[None, 1:, :-1])[0], stream[1:, -1:]], -1)])


def _added(stream: Tensor, written: Tensor, bias: Tensor | None) -> Tensor:
    out = stream + written
    if bias is not None:
        out[1:, :-1] += bias
    return out
