"""Write the hashes of the shipped data files into the `manifest.json` of each folder in `src/circuitkit/data`.

    python -m tools manifest

Every reader in the library compares a file with its entry. A new file gets its entry by hand first, with the script that
makes it: `"new.csv": {"script": "studies/new.py"}`. The shipped models have a manifest of their own.
"""

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("circuits", "conversion", "induction", "reports", "superposition")


def folder(package: str) -> Path:
    return ROOT / "src/circuitkit/data" / package


def stored(package: str) -> dict[str, dict]:
    """The manifest as it is stored."""
    return json.loads((folder(package) / "manifest.json").read_text("utf-8"))


def measured(package: str) -> dict[str, dict]:
    """The manifest with the size and the hash that each file has now."""
    entries = stored(package)
    files = {path.name for path in folder(package).iterdir()} - {"manifest.json"}
    if files != entries.keys():
        differing = sorted(files ^ entries.keys())
        raise SystemExit(f"{package}: {differing} must be both in the folder and in manifest.json")
    found = {}
    for name, entry in entries.items():
        raw = (folder(package) / name).read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        found[name] = {"script": entry["script"], "bytes": len(raw), "sha256": digest}
    return found


def main() -> None:
    for package in PACKAGES:
        text = json.dumps(measured(package), indent=1) + "\n"
        (folder(package) / "manifest.json").write_text(text, "utf-8")
