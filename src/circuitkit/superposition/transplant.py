"""A gated block in the place of an attention layer of a model."""

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.component_setup import replace_remote_component, setup_submodules
from transformer_lens.model_bridge.generalized_components import AttentionBridge, LinearBridge
from transformer_lens.model_bridge.sources.native import NativeAttention

from circuitkit.bridge import copy_model, name_hooks, submodules
from circuitkit.checks import checked, require_finite
from circuitkit.heads import allowed_pairs
from circuitkit.superposition.block import GatedBlock


class GatedAttention(NativeAttention):
    """An attention layer of transformer-lens whose pattern is multiplied by the gates of a block.

    `hook_pattern` sees the pattern after the multiplication, which is what values are mixed with.
    """

    def __init__(self, block: GatedBlock, bias: Tensor) -> None:
        config = TransformerBridgeConfig(
            d_model=len(bias),
            d_head=block.recipe.d_head,
            n_heads=block.n_heads,
            n_layers=1,
            n_ctx=1,  # the mask is made for each input, because n_ctx^2 can be much
            attn_only=True,
            architecture="TransformerLensNative",
        )
        super().__init__(config)
        self.block = copy.deepcopy(block)  # the caller's stays trainable
        W_V, W_O = block.used_weights()
        sides = {"q": (block.W_Q, block.b_Q), "k": (block.W_K, block.b_K), "v": (W_V, block.b_V)}
        weights = {"o.weight": W_O.flatten(0, 1).T, "o.bias": bias}
        for side, (W, b) in sides.items():
            weights |= {f"{side}.weight": W.mT.flatten(0, 1), f"{side}.bias": b.flatten()}
        for name, value in weights.items():
            self.get_parameter(name).data = value.detach().clone().to(bias)
        self.requires_grad_(False)

    def gates(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos pos"]:
        """The gates on this input of the layer."""
        return self.block.gates(x)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """What the heads write, and the gated pattern."""
        allowed = allowed_pairs("causal", hidden_states.shape[1], hidden_states.device)
        self.causal_mask = ~allowed
        gates = self.gates(hidden_states)
        pattern_hook = kwargs.pop("pattern_fn", None)

        def gated(pattern: Tensor) -> Tensor:
            pattern = gates * pattern
            return pattern if pattern_hook is None else pattern_hook(pattern)

        return super().forward(hidden_states, *args, pattern_fn=gated, **kwargs)


@checked
def with_gated_layer(model: TransformerBridge, layer: int, block: GatedBlock) -> TransformerBridge:
    """A copy of a model with a gated block in the place of an attention layer.

    The heads of the block are ordinary heads of the copy: they have names, can be ablated, and
    `blocks.{layer}.attn.hook_pattern` has their gated patterns. The layer's output bias stays. Gates
    are none of the inputs Q, K and V: they always read the whole stream, whatever wires and inputs
    of the heads are cut.

    Parameters
    ----------
    model : a causal `TransformerBridge`
    layer : number of the layer
    block : a block of the same d_model, see `train_gated`

    Returns
    -------
    model : a copy. Generate from it without a cache of keys and values.

    Raises
    ------
    ValueError : if the block does not fit, or holds NaN

    Notes
    -----
    Error: rounding. Source: this book.

    Examples
    --------
    >>> import circuitkit as ck
    >>> from circuitkit.superposition import GATES, GatedBlock
    >>> model = ck.load_model("two-layer")
    >>> gated = with_gated_layer(model, 1, GatedBlock(GATES, n_heads=4, d_model=160))
    >>> gated.blocks[1].attn.W_Q.shape
    torch.Size([12, 160, 1])
    """
    require_layer(model, layer)
    d_model = block.W_Q.shape[1]
    if d_model != model.cfg.d_model:
        raise ValueError(
            f"The block has d_model = {d_model}, and the model has {model.cfg.d_model}. Train the "
            "block on a record of this model."
        )
    for name, weight in block.named_parameters():
        require_finite(weight, f"{name} of the block")
    twin = copy_model(model)
    old = twin.blocks[layer].attn
    bias = torch.zeros_like(model.W_E[0]) if old.b_O is None else old.b_O.detach()
    attention = GatedAttention(block, bias)
    sides: dict[str, Any] = {side: LinearBridge(name=side) for side in "qkvo"}
    bridge = AttentionBridge(name=old.name, config=attention.cfg, submodules=sides)
    bridge.set_original_component(attention)
    setup_submodules(bridge, twin.adapter, attention)
    twin.blocks[layer].add_module("attn", bridge)
    replace_remote_component(bridge, old.name, twin.blocks[layer].original_component)
    if len(twin.blocks) == 1:
        twin.cfg.n_heads, twin.cfg.d_head = block.n_heads, block.recipe.d_head
    name_hooks(twin)
    return twin.train(model.training)


def require_layer(model: TransformerBridge, layer: int) -> None:
    """Raise a `ValueError` unless this is a causal attention layer of the model."""
    n_layers = len(model.blocks)
    if not 0 <= layer < n_layers or "attn" not in submodules(model.blocks[layer]):
        raise ValueError(
            f"Layer {layer} of this model has no attention. Its layers are 0 to {n_layers - 1}."
        )
    if str(getattr(model.cfg, "attention_dir", "causal")) != "causal":
        raise ValueError("A gated block attends causally, and this model does not.")
