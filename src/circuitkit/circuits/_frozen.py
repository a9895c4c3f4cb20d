"""A model on one batch with its attention patterns and norm scales frozen: what is left is linear."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._heads import Heads, heads
from circuitkit._precision import require_same


@dataclass(frozen=True)
class Affine:
    """A norm with its statistics frozen: `x -> (x - mean) / scale * gain + bias`; the identity where there is none."""

    centre: bool = False
    scale: Float[Tensor, "batch pos 1"] | None = None
    gain: Float[Tensor, " d_model"] | None = None
    bias: Float[Tensor, " d_model"] | None = None

    def linear(self, x: Float[Tensor, "*path batch pos d_model"]) -> Float[Tensor, "*path batch pos d_model"]:
        """The part that is linear in `x`."""
        if self.scale is None:
            return x
        x = (x - x.mean(-1, keepdim=True) if self.centre else x) / self.scale
        return x if self.gain is None else x * self.gain


@dataclass(frozen=True)
class Frozen:
    """One forward pass, taken apart."""

    heads: Heads
    starts: dict[str, Float[Tensor, "batch pos d_model"]]
    """`"embed"`, and `"pos_embed"` where positions are added to the stream."""
    patterns: list[Float[Tensor, "batch head dst src"]]
    """One per layer."""
    norms: list[Affine]
    """Before the heads of each layer."""
    final: Affine
    output_biases: list[Tensor | None]
    """`b_O` of each layer."""
    mlps: list[Tensor | None]
    """What each MLP wrote, `[batch, pos, d_model]`, its bias included."""
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None
    logits: Float[Tensor, "batch pos d_vocab"]

    @property
    def n_layers(self) -> int:
        return len(self.patterns)

    def layer(self, number: int) -> Heads:
        """The heads of one layer, in the order of its pattern."""
        return self.heads[
            [name for name, layer in zip(self.heads.names, self.heads.layers, strict=True) if layer == number]
        ]


def freeze(model: Any, tokens: Int[Tensor, "*batch pos"], what: str) -> Frozen:
    """Run the model once and collect the parts."""
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    wanted = ("hook_embed", "hook_pos_embed", "hook_pattern", "ln1.hook_in", "ln1.hook_out", "hook_mlp_out")
    wanted += ("ln_final.hook_in", "ln_final.hook_out")
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith(wanted))
        embed, places = cache["hook_embed"], _lookup(cache, "hook_pos_embed")
        starts = {"embed": embed}
        if places is not None:
            starts["pos_embed"] = places.expand_as(embed)
        layers = range(model.cfg.n_layers)
        return Frozen(
            heads=heads(model),
            starts=starts,
            patterns=[cache[f"blocks.{layer}.attn.hook_pattern"] for layer in layers],
            norms=[_affine(model, model.blocks[layer], "ln1", cache, f"blocks.{layer}.ln1", what) for layer in layers],
            final=_affine(model, model, "ln_final", cache, "ln_final", what),
            output_biases=[_parameter(model.blocks[layer].attn, "b_O") for layer in layers],
            mlps=[_lookup(cache, f"blocks.{layer}.hook_mlp_out") for layer in layers],
            W_U=model.W_U.detach(),
            b_U=_parameter(model, "b_U"),
            logits=logits,
        )


def _affine(model: Any, parent: Any, name: str, cache: Any, point: str, what: str) -> Affine:
    """The frozen norm at one place, checked against what the model's own norm gave."""
    x, y = _lookup(cache, f"{point}.hook_in"), _lookup(cache, f"{point}.hook_out")
    kind = str(model.cfg.normalization_type or "").upper()
    if x is None or y is None or not kind or torch.equal(x, y):
        return Affine()
    module, centre = getattr(parent, name), kind.startswith("LN")
    centred = x - x.mean(-1, keepdim=True) if centre else x
    scale = (centred.square().mean(-1, keepdim=True) + float(model.cfg.eps)).sqrt()
    gain, bias = _parameter(module, "w"), _parameter(module, "b") if centre else None
    affine = Affine(centre, scale, gain, bias)
    again = affine.linear(x) if bias is None else affine.linear(x) + bias
    text = f"{what} cannot freeze {point}, a norm of kind {model.cfg.normalization_type!r}: expected a LayerNorm or RMSNorm before "
    text += "attention. Fold the norm (model.enable_compatibility_mode()) or give an attention-only model"
    require_same(again, y, 2e-3 * float(y.abs().max()), text)
    return affine


def _lookup(cache: Any, key: str) -> Tensor | None:
    try:
        return cache[key]
    except KeyError:
        return None


def _parameter(module: Any, name: str) -> Tensor | None:
    """A parameter or None if the module has none, or only zeros under this name."""
    try:
        value = getattr(module, name)
    except AttributeError:
        return None
    return value.detach() if isinstance(value, Tensor) and (name == "w" or value.any()) else None
