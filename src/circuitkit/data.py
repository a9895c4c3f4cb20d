"""The store of shipped files: `data/<topic>/`, whose `manifest.json` records the hash of each.

Whenever a file is read, it is compared with its hash.
"""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def manifest(topic: str) -> dict[str, Any]:
    """What `data/<topic>/manifest.json` records; `python -m tools manifest` writes it."""
    return json.loads((DATA / topic / "manifest.json").read_text("utf-8"))


def hashes(entries: dict[str, Any]) -> dict[str, str]:
    """The sha256 of each file of a manifest, in which entries can lie inside entries."""
    by_file: dict[str, str] = {}
    for name, entry in entries.items():
        if isinstance(entry, dict) and "sha256" in entry:
            by_file[entry.get("file", name)] = entry["sha256"]
        elif isinstance(entry, dict):
            by_file |= hashes(entry)
    return by_file


def stored_file(topic: str, name: str) -> Path:
    """The path of a shipped file, after its hash was compared with the recorded one."""
    expected = hashes(manifest(topic))
    if name not in expected:
        raise ValueError(f"There is no stored file {name!r}. There are {sorted(expected)}.")
    path = DATA / topic / name
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != expected[name]:
        raise ValueError(
            f"The file {path} is damaged: its sha256 is {digest}, and manifest.json records "
            f"{expected[name]}. Install the package again."
        )
    return path


def stored(topic: str, name: str) -> Any:
    """Read a shipped file: tensors by name, JSON, a list of JSON lines, or the rows of a table."""
    path = stored_file(topic, name)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    text = path.read_text("utf-8")
    if path.suffix == ".csv":
        rows = csv.DictReader(text.splitlines())
        return [{column: number(cell) for column, cell in row.items()} for row in rows]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def number(text: str) -> int | float | str:
    """A cell of a table as a number, or as the text that it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
