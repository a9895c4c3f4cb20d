"""`load_model`: one function for shipped models, their checkpoints, local folders and hub names; what it loads refuses in
words what it cannot take: text or rows too long, token ids of another vocabulary."""

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from circuitkit._contract import Device, Integer, Name, Natural, must, public
from circuitkit._stored import stored_file
from circuitkit.models._expand import attention_only, config, with_mlp
from circuitkit.models._hub import boot_from_hub, boot_layers
from circuitkit.models._manifest import list_models, model_card, weight_file

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

BOS = "<|endoftext|>"


@public
@must(lambda step, name: name in list_models() or f"no step: only shipped models have checkpoints: {list_models()}. Leave step out")
@must(lambda layers, name: layers is None or len(layers) > 0 and Path(name).is_dir() or "left out, or numbers of layers of a model in a folder: other models are small")
def load_model(
    name: Name, *, step: Integer | None = None, layers: Sequence[Natural] | None = None, device: Device | None = None
) -> "TransformerBridge":
    """A model as a transformer-lens `TransformerBridge` in eval mode, with its tokenizer.

    `name` is a shipped model (`list_models()`), a folder with a Hugging Face model, or a name on the hub such as `"gpt2"`.
    `step` picks a training checkpoint of a shipped model (`checkpoints(name)`); `device` is any torch device. Where a folder's
    weights do not fit, `layers=[7]` reads that layer alone from its safetensors, with embedding and unembedding, as stored; it
    comes as a model of its own, and its heads count from layer 0. Shipped weights
    are float32 values that were rounded when stored (half precision; embeddings of earlier checkpoints 8 bits), their sha256
    is verified, nothing touches the network, and they require no gradients. Raises `ValueError` for an unknown name or step
    or a damaged file, `FileNotFoundError` for a missing one or no network. **Source**: shipped weights were trained by
    `tools/train/model.py`; others are read by transformer-lens.
    """
    if name not in list_models():
        return (boot_from_hub(name, device) if layers is None else boot_layers(name, layers, device)).eval()
    path, sizes = weight_file(name, step), model_card(name)["sizes"]
    from safetensors.torch import load_file
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources import boot_native

    model = boot_native(TransformerBridgeConfig(**config(sizes)), tokenizer=load_tokenizer())
    model.load_state_dict((with_mlp if sizes["mlp"] else attention_only)(load_file(path), sizes), strict=True)
    guard_input(model, name)
    model.requires_grad_(False)
    if device is not None:
        model.to(device)
    return model.eval()


def guard_input(model: Any, name: str) -> None:
    """Make `model` refuse, in words, what does not fit it; nothing is cut silently.

    transformer-lens cuts long text at the context unless told otherwise; here only `truncate=True` does. Token ids are
    checked on the wrapped model, since `run_with_cache` and its like do not go through the bridge's own call.
    """
    model.__dict__["to_tokens"] = partial(_to_tokens, model, name)
    model.original_model.register_forward_pre_hook(partial(_check_call, name), with_kwargs=True)


def _to_tokens(model: Any, name: str, input: Any, *args: Any, truncate: bool = False, **kwargs: Any) -> torch.Tensor:
    tokens = type(model).to_tokens(model, input, *args, truncate=truncate, **kwargs)
    _check_length(tokens, name, model.cfg.n_ctx)
    return tokens


def _check_call(name: str, model: Any, args: tuple, kwargs: dict) -> None:
    given = args[0] if args else kwargs.get("input_ids")
    if not isinstance(given, torch.Tensor) or given.is_floating_point():
        return
    _check_length(given, name, model.cfg.n_ctx)
    d_vocab = model.cfg.d_vocab
    if given.numel() and (int(given.min()) < 0 or int(given.max()) >= d_vocab):
        raise ValueError(
            f"token ids run from {int(given.min())} to {int(given.max())}, but {name!r} has ids 0 to {d_vocab - 1}. "
            "Make tokens with model.to_tokens(text); ids of another tokenizer do not fit."
        )


def _check_length(tokens: torch.Tensor, name: str, n_ctx: int) -> None:
    if tokens.shape[-1] > n_ctx:
        raise ValueError(
            f"the input has {tokens.shape[-1]} tokens, but {name!r} reads at most {n_ctx} (n_ctx), counting the "
            f"'<|endoftext|>' it begins with. Cut it: model.to_tokens(text, truncate=True), or tokens[:, :{n_ctx}]."
        )


def load_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer of the shipped models: 2,048 entries; `<|endoftext|>` (id 0) begins every text.

    **Source**: a byte-level BPE, trained on the corpus by `tools/train/tokenizer.py`.
    """
    from transformers import PreTrainedTokenizerFast

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(stored_file("models", "tokenizer.json")),
            bos_token=BOS,
            eos_token=BOS,
            unk_token=BOS,
            pad_token=BOS,
        )
    # transformer-lens asks a tokenizer where it came from so that it can load a variant that prepends BOS; naming it
    # a local one that already does keeps it from asking the hub.
    tokenizer.init_kwargs.update(name_or_path="circuitkit", add_bos_token=True)
    return tokenizer
