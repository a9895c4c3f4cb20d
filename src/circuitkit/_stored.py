"""What ships with a room, read in one way: each file of `data/<room>` is compared with the hash that its manifest records."""

import csv
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent / "data"


def manifest(room: str) -> dict[str, Any]:
    """`data/<room>/manifest.json`, written by the scripts that made its files (`python -m tools manifest`)."""
    return _read(HOME / room / "manifest.json")


@cache
def _read(path: Path) -> dict[str, Any]:
    return json.loads(_existing(path).read_text("utf-8"))


def hashes(entries: dict[str, Any]) -> dict[str, str]:
    """The sha256 of every file that a manifest names, in `"file"` or by the key of its entry, at any depth."""
    found: dict[str, str] = {}
    for key, entry in entries.items():
        if isinstance(entry, dict):
            found |= (
                {entry.get("file", key): entry["sha256"]} if "sha256" in entry else hashes(entry)
            )
    return found


def stored_file(room: str, name: str) -> Path:
    """The path of a shipped file whose content has the recorded hash."""
    known = hashes(manifest(room))
    if name not in known:
        raise ValueError(f"there is no stored file {name!r}; stored are {sorted(known)}")
    path = _existing(HOME / room / name)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != known[name]:
        why = f"its sha256 is {digest}, expected {known[name]} as recorded in manifest.json"
        raise ValueError(
            f"{path} is damaged: {why}. Install the package again, or restore the file from the repository."
        )
    return path


def stored(room: str, name: str) -> Any:
    """A shipped file by its kind: tensors by name, what the JSON says, a list of its lines, or a row for each line of a table."""
    path = stored_file(room, name)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    text = path.read_text("utf-8")
    if path.suffix == ".csv":
        return [
            {key: _number(value) for key, value in row.items()}
            for row in csv.DictReader(text.splitlines())
        ]
    return (
        [json.loads(line) for line in text.splitlines()]
        if path.suffix == ".jsonl"
        else json.loads(text)
    )


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; expected it inside the installed package. Install the package again "
            "(`make book` in a clone), or write it anew as book/shipped-models.ipynb describes."
        )
    return path
