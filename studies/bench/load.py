"""Load a model of the bench."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

FOLDER = Path(__file__).parent


def load(number: int) -> "TransformerBridge":
    """Load a model of the bench as a transformer-lens bridge, in eval mode and float32.

    Parameters
    ----------
    number : 0 to 39; 0 to 19 are for fitting rules, 20 to 39 for the blind test

    Returns
    -------
    A native bridge without tokenizer, which takes token ids `[row, pos]` with at most 64 positions.
    There is no special first token.

    Raises
    ------
    ValueError : for an unknown number, and for a file that has changed

    Examples
    --------
    >>> load(0).cfg.n_ctx
    64
    """
    import torch
    from safetensors.torch import load_file
    from transformer_lens.model_bridge.sources.native import boot

    manifest = json.loads((FOLDER / "manifest.json").read_text("utf-8"))
    name = f"{number:02d}"
    if name not in manifest:
        raise ValueError(f"The bench has the models 0 to {len(manifest) - 1}, and not {number}.")
    path = FOLDER / "models" / f"{name}.safetensors"
    if hashlib.sha256(path.read_bytes()).hexdigest() != manifest[name]["sha256"]:
        raise ValueError(f"The file {path.name} is not the one that the manifest describes.")
    config = configuration(manifest[name]["sizes"])
    with torch.random.fork_rng(devices=[]):  # boot draws weights, which are replaced
        bridge = boot(config, model_name=f"bench-{name}")
    bridge.load_state_dict({key: tensor.float() for key, tensor in load_file(path).items()})
    return bridge.eval().requires_grad_(False)


def configuration(sizes: dict[str, Any]) -> "TransformerBridgeConfig":
    """Return the configuration of an attention-only native model with these sizes."""
    from transformer_lens.config import TransformerBridgeConfig

    return TransformerBridgeConfig(
        **sizes,
        attn_only=True,
        act_fn="gelu",
        init_weights=False,
        seed=0,
        architecture="TransformerLensNative",
    )
