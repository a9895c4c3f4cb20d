"""A native `TransformerBridge` from the weights of an attention-only model without norms and biases."""

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._heads import Heads

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def bridge_from_parts(
    W_E: Float[Tensor, "token d_model"],
    W_pos: Float[Tensor, "pos d_model"],
    W_U: Float[Tensor, "d_model token"],
    heads: Heads,
) -> "TransformerBridge":
    """The model whose stream is `W_E[token] + W_pos[pos]`, whose heads are `heads` and which reads logits with `W_U`.

    **Shapes**: as annotated; every layer must have the same number of heads. **Error**: none, weights are copied; the
    bridge divides scores by sqrt(d_head), so `heads` must too. **Source**: transformer-lens 4, native models.
    """
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources.native import boot

    n_layers = max(heads.layers) + 1
    n_heads = len(heads) // n_layers
    assert heads.layers == tuple(layer for layer in range(n_layers) for _ in range(n_heads))
    assert math.isclose(heads.scale, math.sqrt(heads.d_head))
    config = TransformerBridgeConfig(
        d_model=heads.d_model,
        d_head=heads.d_head,
        n_layers=n_layers,
        n_heads=n_heads,
        n_ctx=len(W_pos),
        d_vocab=len(W_E),
        attn_only=True,
        normalization_type=None,
        act_fn="gelu",
        init_weights=False,
        seed=0,
        architecture="TransformerLensNative",
    )
    with torch.random.fork_rng(devices=[]):
        bridge: TransformerBridge = boot(config, dtype=W_E.dtype)
    state = {name: torch.zeros_like(value) for name, value in bridge.state_dict().items()}
    state |= {"embed.weight": W_E, "pos_embed.weight": W_pos, "unembed.weight": W_U.T}
    for layer in range(n_layers):
        rows = slice(layer * n_heads, (layer + 1) * n_heads)
        for name in "qkv":
            stacked = getattr(heads, f"W_{name.upper()}")[rows]
            state[f"blocks.{layer}.attn.{name}.weight"] = stacked.transpose(1, 2).flatten(0, 1)
        state[f"blocks.{layer}.attn.o.weight"] = heads.W_O[rows].flatten(0, 1).T
    bridge.load_state_dict({name: value.detach().clone().contiguous() for name, value in state.items()})
    return bridge.eval().requires_grad_(False)
