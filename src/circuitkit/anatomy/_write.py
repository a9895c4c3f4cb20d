"""An `Anatomy` of heads as a native `TransformerBridge`: the one way back."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from circuitkit._contract import Count, public
from circuitkit._heads import Heads
from circuitkit.anatomy._sublayer import UNLIMITED, Anatomy, Norm

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


@public
def to_bridge(model: Anatomy, *, n_ctx: Count | None = None) -> "TransformerBridge":
    """The same model as a native transformer-lens bridge, in eval mode and without gradients.

    For attention heads in serial layers of one size, with or without biases, norms before them, grouped keys and caps; all
    else is refused in a list. A model without positions gets zeros for `n_ctx`. **Error**: none, weights are copied; a
    `scale` other than sqrt(d_head) is moved into `W_Q`. **Source**: transformer-lens 4, native models.

    >>> from circuitkit.anatomy import from_heads
    >>> from circuitkit.circuits import random_heads
    >>> to_bridge(from_heads(random_heads(2, 8, 3), torch.eye(8), torch.eye(8)), n_ctx=4).cfg.n_heads
    2
    """
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources.native import boot

    n_ctx = model.n_ctx if n_ctx is None else n_ctx
    problems = _problems(model, n_ctx)
    if problems:
        raise ValueError(
            "to_bridge cannot write this model as a native bridge:\n  " + "\n  ".join(problems)
        )
    layers: list[Heads] = [sub.inside for sub in model.sublayers]
    first, norm = layers[0], model.final
    config = TransformerBridgeConfig(
        d_model=model.d_model,
        d_head=first.d_head,
        n_layers=len(layers),
        n_heads=len(first),
        n_ctx=n_ctx,
        d_vocab=len(model.W_E),
        d_vocab_out=model.W_U.shape[1],
        attn_only=True,
        attention_dir="bidirectional" if first.mask == "full" else "causal",
        normalization_type=None if norm is None else "LN" if norm.centre else "RMS",
        eps=1e-5 if norm is None else norm.eps,
        attn_scores_soft_cap=first.cap or -1.0,
        output_logits_soft_cap=model.cap or -1.0,
        act_fn="gelu",
        init_weights=False,
        seed=0,
        architecture="TransformerLensNative",
    )
    with torch.random.fork_rng(devices=[]):
        bridge: TransformerBridge = boot(config, dtype=model.W_E.dtype)
    state = {name: torch.zeros_like(value) for name, value in bridge.state_dict().items()}
    given = {
        "embed.weight": model.embedding,
        "unembed.weight": model.W_U.T,
        "unembed.bias": model.b_U,
    }
    given |= {
        "pos_embed.weight": None if model.W_pos is None else model.W_pos[:n_ctx],
        **_norm_state("ln_final", norm, model.W_E),
    }
    for number, (sub, heads) in enumerate(zip(model.sublayers, layers, strict=True)):
        at, divisor = f"blocks.{number}.attn.", heads.scale / math.sqrt(heads.d_head)
        for name in "QKV":
            W, b = getattr(heads, f"W_{name}"), getattr(heads, f"b_{name}")
            W, b = (
                (W, b)
                if name != "Q" or divisor == 1
                else (W / divisor, None if b is None else b / divisor)
            )
            given[f"{at}{name.lower()}.weight"] = W.transpose(1, 2).flatten(0, 1)
            given[f"{at}{name.lower()}.bias"] = None if b is None else b.flatten()
        given |= {f"{at}o.weight": heads.W_O.flatten(0, 1).T, f"{at}o.bias": sub.bias}
        given |= _norm_state(f"blocks.{number}.ln1", sub.before, model.W_E)
    state |= {name: value for name, value in given.items() if value is not None}
    bridge.load_state_dict(
        {name: value.detach().clone().contiguous() for name, value in state.items()}
    )
    return bridge.eval().requires_grad_(False)


def _norm_state(name: str, norm: Norm | None, like: Tensor) -> dict[str, Tensor | None]:
    if norm is None:
        return {}
    return {
        f"{name}.weight": like.new_ones(like.shape[1]) if norm.gain is None else norm.gain,
        f"{name}.bias": norm.bias,
    }


def _problems(model: Anatomy, n_ctx: int) -> list[str]:
    """Everything that a native bridge of heads cannot hold."""
    out = [
        f"{sub.name} is no layer of attention heads"
        for sub in model.sublayers
        if not isinstance(sub.inside, Heads)
    ]
    out += ["it has no layers"] if not model.steps else []
    if (
        any(len(step.sublayers) > 1 or step.closing for step in model.steps)
        or model.opening
        or model.head
    ):
        out.append("layers run side by side, or a norm closes them")
    if n_ctx >= UNLIMITED or (model.W_pos is not None and n_ctx > len(model.W_pos)):
        out.append(
            f"n_ctx is {n_ctx}; give the number of positions, at most as many as it has a table for"
        )
    if out:
        return out
    layers, norms = (
        [sub.inside for sub in model.sublayers],
        [model.final, *(sub.before for sub in model.sublayers)],
    )
    same: dict[str, Any] = {
        "heads": [len(heads) for heads in layers],
        "masks": [heads.mask for heads in layers],
        "caps": [heads.cap for heads in layers],
        "norms": [norm and (norm.centre, norm.eps) for norm in norms],
    }
    out += [
        f"layers differ in their {name}: {values}"
        for name, values in same.items()
        if len(set(values)) > 1
    ]
    if any(heads.turn or heads.window or heads.norm_Q or heads.norm_K for heads in layers):
        out.append("queries and keys are rotated, normed or see a window only")
    if any(sub.gate or sub.after for sub in model.sublayers):
        out.append("heads are gated, or a norm stands behind them")
    if layers[0].mask not in ("causal", "full"):
        out.append(f"heads have the mask {layers[0].mask!r}")
    return out
