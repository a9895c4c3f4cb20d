"""The attention heads of a `TransformerBridge` as `Heads`."""

from typing import Any

import torch

from circuitkit._contract import HasHeads, public
from circuitkit._heads._heads import Heads, Positions


@public
def heads(model: HasHeads) -> Heads | Any:
    """All attention heads of a model as one `Heads`, named `L{layer}H{head}`, in the order of the layers.

    Weights are the ones the model holds now (after folding, if it was folded); they are copies, detached. Grouped-query
    models give one entry per query head, keys and values repeated. A model whose blocks are preceded by a LayerNorm
    gives heads that read the *normalised* stream. An object with its own `.heads` gives those: a converted model its
    attention heads and neuron-heads together, built as they are taken (`anatomy.MixedHeads`).
    **Error**: none, weights are copied. **Source**: the model's own `W_Q, W_K, W_V, W_O`, transformer-lens axis order.
    """
    if getattr(model, "heads", None) is not None:
        return model.heads
    bridge, cfg = model, model.cfg
    n_layers, n_heads = cfg.n_layers, max(int(cfg.n_heads), 1)
    positions = _positions(cfg)
    mask = "full" if str(getattr(cfg, "attention_dir", "causal")) == "bidirectional" else "causal"
    if n_layers == 0:
        empty = torch.zeros(0, cfg.d_model, cfg.d_head)
        return Heads((), empty, empty, empty, empty.transpose(1, 2), mask=mask, positions=positions)
    parts: dict[str, Any] = {}
    for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
        stacked = getattr(bridge, name, None) if name.startswith("b_") else getattr(bridge, name)
        if stacked is None:
            continue  # a checkpoint without biases
        stacked = stacked.detach()
        if stacked.shape[1] != n_heads:
            stacked = stacked.repeat_interleave(n_heads // stacked.shape[1], dim=1)
        parts[name] = stacked.flatten(0, 1).clone()
    for name in ("b_Q", "b_K", "b_V"):
        if name in parts and not parts[name].any():
            del parts[name]
    pairs = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    return Heads(
        names=tuple(f"L{layer}H{head}" for layer, head in pairs),
        layers=tuple(layer for layer, _ in pairs),
        scale=score_divisor(bridge.blocks[0].attn.original_component),
        mask=mask,
        positions=positions,
        **parts,
    )


def score_divisor(attention: Any) -> float | None:
    """What the model's own attention divides scores by; its configuration does not always say. `None`: sqrt(d_head)."""
    if type(attention).__name__ == "GPTNeoSelfAttention":
        return 1.0
    if isinstance(getattr(attention, "scaling", None), float):
        return 1.0 / attention.scaling
    scale = getattr(attention, "scale", None)
    return scale if isinstance(scale, float) else None


def _positions(cfg: Any) -> Positions:
    kind = str(getattr(cfg, "positional_embedding_type", None) or "standard").lower()
    capped = float(getattr(cfg, "attn_scores_soft_cap", -1.0) or -1.0) > 0
    local = bool(getattr(cfg, "use_local_attn", False) or getattr(cfg, "window_size", None))
    if kind == "rotary":
        return "rotary"
    return "other" if capped or local or kind != "standard" else "absolute"
