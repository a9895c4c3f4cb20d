"""`load_model`: one function for shipped models, their checkpoints, local folders and hub names."""

from typing import TYPE_CHECKING

from circuitkit._contract import Device, Integer, Name, must, public
from circuitkit.models._expand import attention_only, config, with_mlp
from circuitkit.models._guard import guard_input
from circuitkit.models._hub import boot_from_hub
from circuitkit.models._manifest import list_models, model_card, weight_file
from circuitkit.models._tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


@public
@must(lambda step, name: name in list_models() or f"no step: only shipped models have checkpoints: {list_models()}. Leave step out")
def load_model(name: Name, *, step: Integer | None = None, device: Device | None = None) -> "TransformerBridge":
    """A model as a transformer-lens `TransformerBridge` in eval mode, with its tokenizer.

    `name` is a shipped model (`list_models()`), a folder with a Hugging Face model, or a name on the hub such as
    `"gpt2"`. `step` picks a training checkpoint of a shipped model (`checkpoints(name)`); `device` is any torch device.
    Shipped weights are float32 values that were rounded when stored: to half precision, and in checkpoints before the
    last the two embeddings to 8 bits. The file's sha256 is verified and nothing touches the network. Weights do not require gradients; `model.requires_grad_(True)` undoes that.

    Raises `ValueError` for an unknown name or step or a damaged file, `FileNotFoundError` for a missing file or a hub
    name without network.

    **Source**: shipped weights were trained by `tools/train/model.py`; others are read by transformer-lens.
    """
    if name not in list_models():
        return boot_from_hub(name, device).eval()
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
