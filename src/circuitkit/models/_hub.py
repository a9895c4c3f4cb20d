"""Models on the Hugging Face hub, through transformer-lens, with one clear error when there is no network."""

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import getproxies, proxy_bypass

from circuitkit.models._manifest import list_models, unknown_model

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def boot_from_hub(name: str, device: Any = None) -> "TransformerBridge":
    """A `TransformerBridge` of a local folder, or of a model on the hub (download or cache)."""
    from transformer_lens.model_bridge import TransformerBridge

    if Path(name).is_dir():
        return TransformerBridge.boot_transformers(name, device=device)
    if Path(name).is_absolute() or name.startswith((".", "~")):
        raise FileNotFoundError(
            f"there is no folder {name!r}; expected one that a model was saved to, with its config.json. Check the path "
            "(a leading ~ is not expanded), or give a shipped model's name: " + ", ".join(list_models()) + "."
        )
    official = _official_name(name)
    if official is None:
        raise unknown_model(name)
    if not _cached(official) and not _reachable():
        raise _no_network(name)
    try:
        return TransformerBridge.boot_transformers(official, device=device)
    except OSError as error:
        if not _reachable():
            raise _no_network(name) from error
        raise FileNotFoundError(
            f"{name!r} could not be loaded from the Hugging Face hub, which was reached but answered: "
            f"{str(error).strip().splitlines()[0]} Expected the name of a public model with weights, such as 'gpt2'; "
            f"check its spelling, or log in with `hf auth login` if it is gated. Shipped models: {list_models()}."
        ) from error


def boot_layers(folder: str, layers: Sequence[int], device: Any = None) -> "TransformerBridge":
    """Some layers of a model in a folder, between its embedding and unembedding; of its safetensors nothing else is read."""
    import transformers
    from safetensors import safe_open
    from transformer_lens.model_bridge import TransformerBridge

    config: Any = transformers.AutoConfig.from_pretrained(folder)
    place = {layer: str(i) for i, layer in enumerate(layers)}
    if max(layers) >= config.num_hidden_layers:
        raise ValueError(f"layers={tuple(layers)}; expected numbers below {config.num_hidden_layers}, because the model in {folder!r} has no more layers")
    changes: dict[str, Any] = {"num_hidden_layers": len(layers)}
    if getattr(config, "layer_types", None):
        changes["layer_types"] = [config.layer_types[layer] for layer in layers]
    for name, value in changes.items():
        setattr(config, name, value)
    state, number = {}, re.compile(r"(?<=\.)\d+(?=\.)")
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt", device="cpu") as stored:
            for name in stored.keys():  # noqa: SIM118  a file, not a dict
                found = number.search(name)
                if found is None or int(found[0]) in place:
                    state[name if found is None else number.sub(place[int(found[0])], name, count=1)] = stored.get_tensor(name)
    if not state:
        raise FileNotFoundError(f"there is no .safetensors file in {folder!r}; layers are read one by one from such files alone. Save the model with save_pretrained(folder).")
    model: Any = getattr(transformers, config.architectures[0]).from_pretrained(None, config=config, state_dict=state, attn_implementation="eager", dtype="auto")
    model = model.requires_grad_(False) if device is None else model.requires_grad_(False).to(device)
    return TransformerBridge.boot_transformers(folder, hf_config_overrides=changes, hf_model=model, dtype=model.dtype, device=device)


def _no_network(name: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{name!r} is a model on the Hugging Face hub: it is not in this machine's cache and the hub cannot be reached. "
        f"Expected internet access, a cached copy, or a path to a local folder. Shipped models need none: {list_models()}."
    )


def _official_name(name: str) -> str | None:
    """The hub's name for `name`, or `None` when nobody knows it."""
    from transformer_lens.supported_models import MODEL_ALIASES, OFFICIAL_MODEL_NAMES

    if name in OFFICIAL_MODEL_NAMES or ("/" in name and " " not in name):
        return name
    return next((official for official, aliases in MODEL_ALIASES.items() if name in aliases), None)


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _reachable(seconds: float = 3.0) -> bool:
    """Whether the hub's host (or the proxy set for it) answers; saves the half minute its client retries first."""
    from huggingface_hub import constants

    url = urlparse(constants.ENDPOINT)
    proxy = getproxies().get(url.scheme)
    if proxy and not proxy_bypass(url.hostname or ""):
        url = urlparse(proxy if "//" in proxy else f"//{proxy}")
    try:
        with socket.create_connection((url.hostname, url.port or 443), timeout=seconds):
            return True
    except OSError:
        return False
