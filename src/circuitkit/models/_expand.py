"""From the compact stored weights to the state dictionary of a `TransformerBridge`."""

from typing import Any

import torch
from torch import Tensor


def config(sizes: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `TransformerBridgeConfig` for a shipped model."""
    mlp = bool(sizes["mlp"])
    return {
        "d_model": sizes["d_content"] if mlp else sizes["d_content"] + sizes["d_pos"],
        "d_head": sizes["d_head"],
        "n_heads": sizes["n_heads"],
        "n_layers": sizes["n_layers"],
        "n_ctx": sizes["n_ctx"],
        "d_vocab": sizes["d_vocab"],
        "d_mlp": sizes["d_mlp"] if mlp else None,
        "act_fn": "gelu",
        "attn_only": not mlp,
        "normalization_type": "LN" if mlp else None,
        "init_weights": False,
        "seed": 0,
        "model_name": sizes["name"],
    }


def unpacked(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights as float32; a matrix in 8 bits is multiplied by the scales stored beside it."""
    full = {name: tensor.float() for name, tensor in stored.items() if not name.endswith(".scale")}
    for name, tensor in stored.items():
        if name.endswith(".scale"):
            full[name.removesuffix(".scale")] *= tensor.float()
    return full


def attention_only(stored: dict[str, Tensor], sizes: dict[str, Any]) -> dict[str, Tensor]:
    """Bridge weights of a model whose positions live in a subspace of their own: the stream is `[content, position]`.

    Embeddings are zero on the other's dimensions; values, outputs and unembedding know content only. So positions reach
    queries and keys and nothing else, exactly.
    """
    d, p = sizes["d_content"], sizes["d_pos"]
    weight = unpacked(stored)
    pad = torch.nn.functional.pad
    out = {
        "embed.weight": pad(weight["W_E"], (0, p)),
        "pos_embed.weight": pad(weight["W_pos"], (d, 0)),
        "unembed.weight": pad(weight["W_U"], (0, 0, 0, p)).T,
    }
    for layer in range(sizes["n_layers"]):
        to, of = f"blocks.{layer}.attn.", f"layers.{layer}.W_"
        out[to + "q.weight"] = weight[of + "Q"].T
        out[to + "k.weight"] = weight[of + "K"].T
        out[to + "v.weight"] = pad(weight[of + "V"], (0, 0, 0, p)).T
        out[to + "o.weight"] = pad(weight[of + "O"], (0, p)).T
        out |= {f"{to}{name}.bias": torch.zeros(len(out[f"{to}{name}.weight"])) for name in "qkvo"}
    out["unembed.bias"] = torch.zeros(sizes["d_vocab"])
    return {name: tensor.contiguous() for name, tensor in out.items()}


def with_mlp(stored: dict[str, Tensor], sizes: dict[str, Any]) -> dict[str, Tensor]:
    """Bridge weights of the pre-LayerNorm model with MLPs, whose parts only change their names."""
    weight = unpacked(stored)
    out = {
        "embed.weight": weight["W_E"],
        "pos_embed.weight": weight["W_pos"],
        "unembed.weight": weight["W_U"].T.contiguous(),
        "unembed.bias": torch.zeros(sizes["d_vocab"]),
        "ln_final.weight": weight["ln_final.weight"],
        "ln_final.bias": weight["ln_final.bias"],
    }
    places = {"ln1": "ln1", "ln2": "ln2", "q": "attn.q", "k": "attn.k", "v": "attn.v", "o": "attn.o"}
    places |= {"fc_in": "mlp.in", "fc_out": "mlp.out"}
    for layer in range(sizes["n_layers"]):
        for stored_name, bridge_name in places.items():
            for part in ("weight", "bias"):
                out[f"blocks.{layer}.{bridge_name}.{part}"] = weight[f"layers.{layer}.{stored_name}.{part}"]
    return out
