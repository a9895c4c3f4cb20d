"""What ships, where it lies, and the hashes it must have."""

import difflib
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from circuitkit._contract import public

DATA = Path(__file__).parent / "data"


@cache
def manifest() -> dict[str, Any]:
    """`data/manifest.json`, written by the packing script: models, their files, hashes and training records."""
    return json.loads(_existing(DATA / "manifest.json").read_text())


def list_models() -> list[str]:
    """Names of the shipped models, smallest first; each can be given to `load_model`.

    **Source**: `manifest.json`, written by `tools/train/pack.py`.
    """
    return list(manifest()["models"])


@public
def model_card(name: str) -> dict[str, Any]:
    """Sizes, training record and held-out losses (nats a token) of a shipped model, as recorded when it was packed.

    **Source**: `manifest.json`, written by `tools/train/model.py` and `tools/train/pack.py`.
    """
    models = manifest()["models"]
    if name not in models:
        raise unknown_model(name)
    return models[name]


def baselines() -> dict[str, float]:
    """Held-out loss in nats a token of smoothed unigram, bigram and trigram models of the same corpus.

    Interpolated Kneser-Ney, fitted on the training text; see `tools/train/baselines.py`.

    **Source**: Kneser and Ney 1995, in its interpolated form; the discounts are chosen as the script says.
    """
    return {name: manifest()["baselines"][name] for name in ("unigram", "bigram", "trigram")}


@public
def checkpoints(name: str) -> list[int]:
    """Training steps of a shipped model that `load_model(name, step=...)` can load, in order; the last is the model.

    **Source**: `manifest.json`, written by `tools/train/pack.py`.
    """
    return [int(step) for step in model_card(name)["files"]]


def unknown_model(name: str) -> ValueError:
    """The error for a name that is neither shipped nor known to transformer-lens."""
    close = difflib.get_close_matches(name, list_models(), n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return ValueError(
        f"no model is called {name!r}.{meant} Expected a shipped model, one of {list_models()}, "
        "or the name of a model on the Hugging Face hub, such as 'gpt2' or 'owner/model'."
    )


def weight_file(name: str, step: int | None) -> Path:
    """The verified file of a shipped model at a step (the last one by default)."""
    files = model_card(name)["files"]
    key = str(checkpoints(name)[-1] if step is None else step)
    if key not in files:
        raise ValueError(
            f"{name!r} has no checkpoint at step {step!r}; expected one of {checkpoints(name)} "
            "(or leave step out for the trained model)."
        )
    return verified(files[key]["file"], files[key]["sha256"])


def verified(file: str, sha256: str) -> Path:
    """The path of a shipped file whose content has the recorded hash."""
    path = _existing(DATA / file)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != sha256:
        why = f"its sha256 is {digest}, expected {sha256} as recorded in manifest.json"
        raise ValueError(f"{path} is damaged: {why}. Install the package again, or restore the file from the repository.")
    return path


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; expected it inside the installed package. Install the package again "
            "(`make book` in a clone), or write it anew as book/shipped-models.ipynb describes."
        )
    return path
