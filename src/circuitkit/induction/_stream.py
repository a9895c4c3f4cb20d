"""Run a bridge and reduce what its hooks see on the spot, so that no pattern outlives its layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.induction._without import Fill, hooks


@torch.no_grad()
def run(
    what: str,
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    watch: dict[str, Callable[[int, Tensor], None]] | None = None,
    without: Sequence[str] = (),
    fill: Fill = "zero",
) -> Float[Tensor, "batch pos d_vocab"]:
    """Logits of one forward pass; `watch["hook_pattern"](layer, activation)` is called in each layer's attention.

    Refuses a model in which a watched hook never fires. What `without` names is ablated before anything is seen.
    """
    bridge = model
    fired: set[tuple[str, int]] = set()

    def watcher(name: str, layer: int, reduce: Callable[[int, Tensor], None]) -> tuple[str, Callable]:
        def hook(activation: Tensor, hook: Any) -> None:
            fired.add((name, layer))
            reduce(layer, activation)

        return f"blocks.{layer}.attn.{name}", hook

    layers = range(bridge.cfg.n_layers)
    watched = [(name, layer, reduce) for name, reduce in (watch or {}).items() for layer in layers]
    known = bridge.hook_dict if watched else {}
    missing = [
        f"blocks.{layer}.attn.{name}" for name, layer, _ in watched if f"blocks.{layer}.attn.{name}" not in known
    ]
    if not missing:
        fwd_hooks = hooks(bridge, without, fill=fill) + [watcher(*each) for each in watched]
        logits = bridge.run_with_hooks(tokens.to(_device(bridge)), fwd_hooks=fwd_hooks)
        missing = [f"blocks.{layer}.attn.{name}" for name, layer, _ in watched if (name, layer) not in fired]
        if not missing:
            return logits
    raise ValueError(
        f"{what} waited for {missing[0]} ({len(missing)} such hooks), which this model does not offer or never called; expected "
        "attention that shows its pattern in every layer. Boot a Hugging Face model with attn_implementation='eager'."
    )


def _device(bridge: Any) -> torch.device:
    return next(bridge.parameters()).device


def token_losses(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch next"]:
    """Loss in nats of predicting each next token: entry `t` is about position `t + 1`. One row at a time in memory."""
    losses = [
        -row.log_softmax(-1).gather(-1, ids[1:, None])[:, 0] for row, ids in zip(logits[:, :-1], tokens, strict=True)
    ]
    return torch.stack(losses)
