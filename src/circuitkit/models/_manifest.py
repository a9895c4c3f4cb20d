"""What ships, where it lies, and the hashes it must have."""

import difflib
from pathlib import Path
from typing import Any

from circuitkit import _stored
from circuitkit._contract import public


def manifest() -> dict[str, Any]:
    """What the packing script recorded: models, their files, hashes and training records."""
    return _stored.manifest("models")


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
    """Held-out loss in nats a token of interpolated Kneser-Ney unigram, bigram and trigram models of the same corpus.

    **Source**: Kneser and Ney 1995; fitted by `tools/train/baselines.py`.
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
    return _stored.stored_file("models", files[key]["file"])
