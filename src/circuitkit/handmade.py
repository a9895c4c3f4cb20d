"""Models made by hand: a model whose weights are those of given heads."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources.native import boot

from circuitkit.checks import checked, require_at_least, require_finite
from circuitkit.heads import Heads, weights_of

__all__ = ["bridge_of"]


@checked
def bridge_of(
    heads: Heads,
    W_E: Float[Tensor, "d_vocab_in d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    W_pos: Float[Tensor, "n_ctx d_model"] | None = None,
    n_ctx: int | None = None,
) -> TransformerBridge:
    """An attention-only model of these heads, without norms, as a native `TransformerBridge`.

    Parameters
    ----------
    heads : the heads of all layers; `heads.layers` says which layer each belongs to, and every
        layer from 0 to the last has the same number of heads. In the model the heads of layer l
        are called `L{l}H0`, `L{l}H1`, ... in this order.
    W_E : token embedding, `[d_vocab_in, d_model]`
    W_U : unembedding, `[d_model, d_vocab]`
    W_pos : position embedding, `[n_ctx, d_model]`; zero if left out
    n_ctx : number of positions, by default that of `W_pos`

    Returns
    -------
    The model in eval mode, without gradients. Weights are copies; a `scale` other than
    `sqrt(d_head)` is moved into `W_Q`.

    Raises
    ------
    ValueError : if a native model cannot hold these heads, and for NaN or infinite weights

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> W = torch.ones(2, 8, 3)
    >>> heads = Heads(("L0H0", "L1H0"), W, W, W, W.mT, layers=(0, 1))
    >>> bridge_of(heads, torch.eye(8), torch.eye(8), n_ctx=4).cfg.n_layers
    2
    """
    if n_ctx is None:
        if W_pos is None:
            raise ValueError("bridge_of needs n_ctx, the number of positions, or W_pos.")
        n_ctx = len(W_pos)
    require_at_least(1, n_ctx=n_ctx)
    require_native(heads)
    for name, weight in {"W_E": W_E, "W_U": W_U, "W_pos": W_pos, **weights_of(heads)}.items():
        if weight is not None:
            require_finite(weight, f"{name}, given to bridge_of,")
    config = native_config(heads, len(W_E), W_U.shape[1], n_ctx)
    config.without_biases = True  # zero biases are no parts, see `parts.is_part`
    with torch.random.fork_rng(devices=[]):  # boot draws weights, which are overwritten below
        bridge = boot(config, dtype=W_E.dtype)
    state = {name: torch.zeros_like(value) for name, value in bridge.state_dict().items()}
    state["embed.weight"] = W_E
    state["unembed.weight"] = W_U.T
    if W_pos is not None:
        state["pos_embed.weight"] = W_pos[:n_ctx]
    for layer in range(config.n_layers):
        state |= attention_state(heads, layer)
    copies = {name: value.detach().clone().contiguous() for name, value in state.items()}
    bridge.load_state_dict(copies)
    return bridge.eval().requires_grad_(False)


def native_config(heads: Heads, d_vocab: int, d_vocab_out: int, n_ctx: int) -> Any:
    """The configuration of a native model with these heads and nothing else."""
    n_layers = int(max(heads.layers)) + 1
    return TransformerBridgeConfig(
        d_model=heads.d_model,
        d_head=heads.d_head,
        n_layers=n_layers,
        n_heads=len(heads) // n_layers,
        n_ctx=n_ctx,
        d_vocab=d_vocab,
        d_vocab_out=d_vocab_out,
        attn_only=True,
        attention_dir="bidirectional" if heads.mask == "full" else "causal",
        normalization_type=None,
        attn_scores_soft_cap=heads.cap or -1.0,
        act_fn="gelu",
        init_weights=False,
        seed=0,
        architecture="TransformerLensNative",
    )


def attention_state(heads: Heads, layer: int) -> dict[str, Tensor]:
    """The parameters of one native attention layer."""
    rows = [row for row, its_layer in enumerate(heads.layers) if its_layer == layer]
    own = heads[rows]
    state = {f"blocks.{layer}.attn.o.weight": own.W_O.flatten(0, 1).T}
    for side in "QKV":
        # a native model divides scores by sqrt(d_head); what is left of the scale goes to W_Q
        divisor = own.scale / math.sqrt(own.d_head) if side == "Q" else 1.0
        W = getattr(own, f"W_{side}") / divisor  # [head, d_model, d_head]
        state[f"blocks.{layer}.attn.{side.lower()}.weight"] = W.transpose(1, 2).flatten(0, 1)
        bias = getattr(own, f"b_{side}")
        if bias is not None:
            state[f"blocks.{layer}.attn.{side.lower()}.bias"] = (bias / divisor).flatten()
    return state


def require_native(heads: Heads) -> None:
    """Raise a `ValueError` if a native model cannot hold these heads."""
    has_more = heads.turn or heads.window or heads.norm_eps is not None or heads.gain_Q is not None
    if has_more or heads.positions != "absolute" or heads.mask == "self_or_first":
        raise ValueError(
            "bridge_of takes heads that attend by QK alone: without rotation, window, norms of "
            f"queries and keys, and with the mask 'causal' or 'full' (it is {heads.mask!r})."
        )
    counts = [heads.layers.count(layer) for layer in range(int(max(heads.layers, default=-1)) + 1)]
    if not counts or len(set(counts)) > 1:
        raise ValueError(
            f"The layers 0, 1, ... have {counts} heads. Every layer needs the same number of "
            "heads; fill the smaller layers with heads of zeros."
        )
