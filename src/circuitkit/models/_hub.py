"""Models on the Hugging Face hub, through transformer-lens, with one clear error when there is no network."""

import socket
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
