"""The final residual stream as an exact sum of what each component wrote."""

import re
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Model, ids, public, unconverted
from circuitkit._precision import rounding_hint


class Decomposition(NamedTuple):
    """What each component added to the residual stream.

    `logits = norm(sum of parts) W_U + b_U`. **Source**: see `decompose`.
    """

    names: tuple[str, ...]
    """`"embed"`, `"pos_embed"`, then in order of depth `"L0H0"`, ..., `"L0 bias"` (b_O) and `"L0 MLP"`."""
    parts: Float[Tensor, "component batch pos d_model"]
    """One summand per name, in the order of `names`."""
    logits: Float[Tensor, "batch pos d_vocab"]
    """The model's own logits in the same run."""
    norm_scale: Float[Tensor, "batch pos 1"] | None
    """The divisor of the final norm at each position, or `None` for a model without one."""

    @property
    def total(self) -> Float[Tensor, "batch pos d_model"]:
        """The final residual stream, the sum of all parts."""
        return self.parts.sum(0)

    def __getitem__(self, key: Any) -> Any:
        """A part by its name; by number, the named tuple's own field."""
        if isinstance(key, slice) or key in range(-4, 4) and key is not True and key is not False:
            return tuple.__getitem__(self, key)
        if not isinstance(key, str) or key not in self.names:
            raise ValueError(f"no component is called {key!r}; the components are: {', '.join(self.names)}")
        return self.parts[self.names.index(key)]


@public
@unconverted
@ids()
def decompose(model: Model, tokens: Int[Tensor, "batch pos"]) -> Decomposition:
    """Split the final residual stream into embedding, position, every head, every MLP and the output biases.

    `x_final = embed + pos_embed + sum_h z_h W_O^h + sum_l b_O^l + sum_l mlp^l`. Exact up to rounding; the sum is
    compared with the model's own stream, and a model that does not add its parts up (post-norm encoders, norms on the
    attention output) is refused. **Source**: "A Mathematical Framework for Transformer Circuits", section on the residual
    stream as a sum; transformer-lens's `ActivationCache.decompose_resid` and `stack_head_results` are the same sum.
    """
    bridge, cfg = model, model.cfg
    wanted = ("hook_embed", "hook_pos_embed", "hook_z", "hook_mlp_out", "hook_resid_post", "hook_scale")
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(
            tokens, names_filter=lambda name: name.endswith(wanted) or name == "ln_final.hook_in"
        )
    names, parts = ["embed"], [cache["hook_embed"]]
    if "hook_pos_embed" in cache:
        names.append("pos_embed")
        parts.append(cache["hook_pos_embed"].expand_as(parts[0]))
    b_O = getattr(bridge, "b_O", None) if cfg.n_layers else None  # None: a checkpoint without biases
    for layer in range(cfg.n_layers):
        z = cache[f"blocks.{layer}.attn.hook_z"].detach()
        z = z.unflatten(-1, (cfg.n_heads, cfg.d_head)) if z.ndim == 3 else z
        names += [f"L{layer}H{head}" for head in range(cfg.n_heads)]
        parts += list(torch.einsum("bphd,hdm->hbpm", z, bridge.W_O[layer].detach()))
        if b_O is not None and b_O[layer].any():
            names.append(f"L{layer} bias")
            parts.append(b_O[layer].expand_as(parts[0]))
        if f"blocks.{layer}.hook_mlp_out" in cache:
            names.append(f"L{layer} MLP")
            parts.append(cache[f"blocks.{layer}.hook_mlp_out"])
    out = Decomposition(tuple(names), torch.stack([part.detach() for part in parts]), logits, cache_scale(cache))
    _require_sum(out.total, cache["ln_final.hook_in"])
    return out


def cache_scale(cache: Any) -> Tensor | None:
    """The final norm's divisor `[batch, pos, 1]` from a cache, or `None`."""
    return cache["ln_final.hook_scale"].detach() if "ln_final.hook_scale" in cache else None


def stage(name: str, cfg: Any) -> int:
    """When a component writes, by its name: embeddings, then the heads of a layer (and its b_O) at once, then its MLP.

    Where attention and MLP of a block run in parallel (GPT-NeoX, GPT-J), they write at once.
    """
    if name in ("embed", "pos_embed"):
        return -1
    layer = int(re.split(r"L(\d+)", name)[1])
    return 2 * layer + ("MLP" in name and not getattr(cfg, "parallel_attn_mlp", False))


def centres(cfg: Any, *, final: bool = False) -> bool:
    """Whether a norm of the model (its final one, or those of its blocks) subtracts the mean over coordinates."""
    if cfg.normalization_type is None or (final and getattr(cfg, "final_rms", False)):
        return False
    return "RMS" not in str(cfg.normalization_type).upper()


def _require_sum(total: Tensor, final: Tensor) -> None:
    error = ((total - final).norm() / final.norm()).item()
    if not error < 1e-3:
        raise ValueError(
            f"the parts of this model do not add up to its final residual stream (relative error {error:.2g}); "
            "expected a model that only adds to the stream, with norms before each block (pre-norm). "
            "Post-norm encoders such as BERT, and norms on a block's output, have no such sum." + rounding_hint(total)
        )
