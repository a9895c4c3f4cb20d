"""Random tokens that repeat, and a model run on rows with parts taken out: what its heads do is reduced on the spot, so that
no pattern outlives its layer."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._heads import Heads
from circuitkit._state import hooked, is_bridge, require_finite
from circuitkit.anatomy import Anatomy, anatomy, read
from circuitkit.anatomy._read import measured
from circuitkit.rows import (
    Repeated,
    after_occurrences,
    earlier_occurrences,
    repeated_tokens,
    second_pass,
    token_losses,
)


def repeating(rows: Repeated) -> bool:
    """Whether the span does come twice from where it is said to begin."""
    return torch.equal(
        *(rows.tokens[:, rows.start + i * rows.period :][:, : rows.period] for i in (0, 1))
    )


__all__ = [
    "Repeated",
    "after_occurrences",
    "earlier_occurrences",
    "repeated_tokens",
    "second_pass",
    "token_losses",
]

Fill = Literal["zero", "mean"]

#: Called in each layer with its number, the pattern `[batch, head, dst, src]` of some destinations, values
#: `[batch, head or group, pos, d_head]`, `W_O`, and which destinations these are.
Watch = Callable[[int, Tensor, Tensor, Tensor, slice], None]


class _Seen(Exception):
    """All that was to be seen: what would follow is asked by nobody."""


def engine(model: Any, without: Sequence[str], look: bool = False) -> Any:
    """The bridge itself where that is faster, or where its hooks count or it cannot be read; else the model as an `Anatomy`."""
    bridge = is_bridge(model) and _heads_of(model, without) is not None
    if bridge:
        require_finite(model)
        if not look or hooked(model):
            return model
    try:
        return anatomy(model)
    except ValueError:
        if not bridge:
            raise
    return model


@torch.no_grad()
def run(
    what: str,
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    without: Sequence[str] = (),
    fill: Fill = "zero",
) -> Float[Tensor, "batch pos d_vocab"]:
    """Logits of one forward pass without some parts and wires; see `Anatomy.run`."""
    runs = engine(model, without)
    if isinstance(runs, Anatomy):
        return runs.run(tokens, without=without, fill=fill, watch=lambda *_: None).logits
    return _on_bridge(what, runs, tokens, None, without, fill)


@torch.no_grad()
def look(
    what: str,
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    watch: Watch,
    without: Sequence[str] = (),
    fill: Fill = "zero",
) -> None:
    """What heads do without some parts and wires, layer by layer; nothing behind the last pattern is computed."""
    runs = engine(model, without, look=True)
    if not isinstance(runs, Anatomy):
        _on_bridge(what, runs, tokens, watch, without, fill)
        return
    last, n_pos = (
        [sub.name for sub in runs.sublayers if isinstance(sub.inside, Heads)][-1:],
        tokens.shape[1],
    )

    def sees(sub: Any, pattern: Tensor, values: Tensor, rows: slice) -> None:
        watch(sub.layer, pattern, values, sub.inside.W_O, rows)
        if [sub.name] == last and rows.stop == n_pos:
            raise _Seen

    with suppress(_Seen):
        runs.run(tokens, without=without, fill=fill, watch=sees)


def _heads_of(bridge: Any, without: Sequence[str]) -> dict[int, list[int]] | None:
    """Numbers of the heads to take out, by layer; `None` where something else is named."""
    rows: dict[int, list[int]] = defaultdict(list)
    for name in [without] if isinstance(without, str) else without:
        *earlier, part = read(name)
        layer, number = part.layer or 0, part.number or 0
        known = layer < bridge.cfg.n_layers and number < bridge.cfg.n_heads
        if earlier or part.kind != "H" or part.input or not known:
            return None
        rows[layer].append(number)
    return rows


def _on_bridge(
    what: str, bridge: Any, tokens: Tensor, watch: Watch | None, without: Sequence[str], fill: Fill
) -> Tensor:
    n, rows = int(bridge.cfg.n_heads), _heads_of(bridge, without) or {}
    hooks = [
        (f"blocks.{layer}.attn.hook_z", _filled(heads, n, fill)) for layer, heads in rows.items()
    ]
    waiting: dict[int, dict[str, Tensor]] = (
        {layer: {} for layer in range(bridge.cfg.n_layers)} if watch else {}
    )

    def keep(layer: int, name: str) -> Callable:
        def hook(value: Tensor, hook: Any) -> None:
            waiting[layer][name] = value
            if watch is not None and len(waiting[layer]) == 2:
                W_O, found = bridge.blocks[layer].attn.W_O, waiting.pop(layer)
                v = found["hook_v"]
                v = v.unflatten(-1, (-1, W_O.shape[1])) if v.ndim == 3 else v
                watch(
                    layer, found["hook_pattern"], v.transpose(1, 2), W_O, slice(0, tokens.shape[1])
                )

        return hook

    watched = [
        (f"blocks.{i}.attn.{name}", keep(i, name))
        for i in waiting
        for name in ("hook_v", "hook_pattern")
    ]
    hooks += [("unembed.hook_in", lambda stream, hook: stream[:, :1])] if watch else []
    if {name for name, _ in watched} <= {*bridge.hook_dict}:
        with measured(bridge):
            logits = bridge.run_with_hooks(
                tokens.to(next(bridge.parameters()).device), fwd_hooks=hooks + watched
            )
        if not waiting:
            return logits
    raise ValueError(
        f"{what} waited for the patterns of layers {[*waiting]}, which this model does not offer or never called; "
        "expected attention that shows its pattern in every layer. Boot a Hugging Face model with attn_implementation='eager'."
    )


def _filled(heads: list[int], n: int, fill: Fill) -> Callable:
    def hook(z: Tensor, hook: Any) -> Tensor:
        z = z.clone()
        own = z.view(*z.shape[:2], n, -1)
        own[:, :, heads] = own[:, :, heads].mean(0, keepdim=True) if fill == "mean" else 0.0
        return z

    return hook
