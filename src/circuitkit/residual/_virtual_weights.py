"""Virtual weights: how the output of one component is read by another, through the stream."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from circuitkit._contract import Model, public, unconverted
from circuitkit._heads import heads as read_heads
from circuitkit.residual._decompose import centres, stage

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix


@public
@unconverted
def components(model: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All writers and all readers of a model's residual stream, as matrices.

    Writers `[rows, d_model]`: `"embed"`, `"pos_embed"`, `"L0H1"` (its W_O), `"L0 MLP"` (its W_out). Readers
    `[d_model, columns]`: `"L1H0.Q"`, `".K"`, `".V"`, `"L1 MLP"` (its W_in; a gated MLP also reads with W_gate,
    `"L1 MLP.gate"`), `"unembed"`. Where a norm precedes a reader, its gain and its centring are folded in,
    `(I - 1/d) diag(w) W`; the divisor, a number per position, is not.

    **Error**: none, weights are copied or folded. **Source**: "A Mathematical Framework for Transformer Circuits",
    where every layer reads and writes the stream linearly.
    """
    bridge, cfg = model, model.cfg
    stack = read_heads(bridge)
    writers, readers = {"embed": bridge.W_E.detach()}, {}
    if str(cfg.positional_embedding_type).lower() != "rotary":
        writers["pos_embed"] = bridge.W_pos.detach()
    for layer in range(cfg.n_layers):
        block = bridge.blocks[layer]
        for name in (name for name, at in zip(stack.names, stack.layers, strict=True) if at == layer):
            row = stack.index(name)
            for kind in "QKV":
                weight = getattr(stack, f"W_{kind}")[row]
                readers[f"{name}.{kind}"] = _through_norm(weight, block, "ln1", cfg)
            writers[name] = stack.W_O[row]
        if hasattr(block, "mlp") and not cfg.attn_only:
            for suffix, weight in (("", bridge.W_in), (".gate", bridge.W_gate if cfg.gated_mlp else None)):
                if weight is not None:
                    readers[f"L{layer} MLP{suffix}"] = _through_norm(weight[layer].detach(), block, "ln2", cfg)
            writers[f"L{layer} MLP"] = bridge.W_out[layer].detach()
    readers["unembed"] = _through_norm(bridge.W_U.detach(), bridge, "ln_final", cfg)
    return writers, readers


def _through_norm(weight: Tensor, owner: Any, name: str, cfg: Any) -> Tensor:
    gain = getattr(getattr(owner, name, None), "weight", None)
    weight = weight if gain is None else gain.detach()[:, None] * weight
    return weight - weight.mean(0) if centres(cfg, final=name == "ln_final") else weight


@public
@unconverted
def virtual_weights(model: Model, writer: str, reader: str) -> "FactoredMatrix":
    """`W_out @ W_in` for a writer and a reader (names as in `components`), kept as its two factors.

    For instance `("L0H1", "L1H0.K")` is `W_O^{0.1} W_K^{1.0}`, `[d_head, d_head]`, and `("embed", "unembed")` is the
    direct path `W_E W_U`. Exact for models without norms; with a norm, exact up to the divisor of each position.

    **Source**: "A Mathematical Framework for Transformer Circuits", virtual weights.
    """
    from transformer_lens import FactoredMatrix

    writers, readers = components(model)
    for what, name, table in (("writer", writer, writers), ("reader", reader, readers)):
        if name not in table:
            raise ValueError(f"no {what} is called {name!r}; the {what}s are: {', '.join(table)}")
    if not _before(writer, reader, model.cfg):
        raise ValueError(f"{writer!r} writes after {reader!r} has read; expected a writer that comes before the reader")
    return FactoredMatrix(writers[writer], readers[reader])


@public
@unconverted
def virtual_weight_table(model: Model) -> tuple[tuple[str, ...], tuple[str, ...], Tensor]:
    """`(writers, readers, strength)` with `strength[writer, reader] = ||W_out W_in||_F / (||W_out||_F ||W_in||_F)`.

    Pairs in which the writer does not come before the reader hold NaN. Random matrices of the same shapes score about
    `1 / sqrt(d_model)`. Computed from the two Gram matrices of the factors, `[d_model, d_model]`, never from the
    (possibly d_vocab-sized) product. **Source**: framework paper, virtual weights; the ratio is its composition score.
    """
    writers, readers = components(model)
    grams_out = torch.stack([w.T @ w for w in writers.values()])
    grams_in = torch.stack([w @ w.T for w in readers.values()])
    size_out = grams_out.diagonal(dim1=1, dim2=2).sum(1).sqrt()
    size_in = grams_in.diagonal(dim1=1, dim2=2).sum(1).sqrt()
    strength = torch.einsum("wij,rij->wr", grams_out, grams_in).clamp_min(0).sqrt() / (size_out[:, None] * size_in)
    for i, writer in enumerate(writers):
        for j, reader in enumerate(readers):
            if not _before(writer, reader, model.cfg):
                strength[i, j] = torch.nan
    return tuple(writers), tuple(readers), strength


def _before(writer: str, reader: str, cfg: Any) -> bool:
    if reader == "unembed" or writer in ("embed", "pos_embed"):
        return True
    return stage(writer, cfg) < stage(reader, cfg)
