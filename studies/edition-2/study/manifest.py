"""Write down the hashes of what ships with the rooms: `data/manifest.json` of each, which every reader compares with.

python -m tools manifest

The shipped models keep a manifest of their own (`tools/train/pack.py`), with the same hashes in it.
"""

import argparse
import hashlib
import json
from pathlib import Path

ROOMS = Path(__file__).parents[2] / "src/circuitkit"
#: The script that makes each file. A file that is not named here may not ship.
MADE_BY = {
    "circuits/skip_trigrams.safetensors": "tools/train/skip_trigram_statistics.py",
    "conversion/activations.json": "tools/train/activations.py",
    "conversion/gates.safetensors": "tools/train/gates.py",
    "conversion/minilm.json": "tools/study/real_conversion.py",
    "conversion/pairs.json": "tools/study/neuron_pairs.py",
    "conversion/trained.json": "tools/study/matched_training.py",
    "conversion/smollm2.json": "tools/study/real_decoders.py",
    "conversion/whisper.json": "tools/study/real_decoders.py",
    "induction/smollm2-135m.json": "tools/study/real_induction.py, tools/study/real_circuit.py",
    "induction/zoo.jsonl": "tools/study/zoo.py",
    "superposition/originals.safetensors": "tools/study/superposition_originals.py",
    "superposition/originals.csv": "tools/study/superposition_originals.py",
    "superposition/causes.csv": "tools/study/superposition_causes.py",
    "superposition/post.csv": "tools/study/superposition_post.py",
    "superposition/recipes.csv": "tools/study/superposition_recipes.py",
    "superposition/coherent.csv": "tools/study/coherent.py",
    "superposition/block.safetensors": "tools/study/superposition_recipes.py --block",
    "superposition/language_model.csv": "tools/study/superposition_language_model.py",
}


def manifest(room: str) -> str:
    """The text of a room's manifest, from the files that lie there now."""
    data, made = (
        ROOMS / room / "data",
        {key.partition("/")[2]: by for key, by in MADE_BY.items() if key.startswith(f"{room}/")},
    )
    unknown = {path.name for path in data.iterdir()} - {*made, "manifest.json"}
    if unknown:
        raise SystemExit(f"{room}/data holds {sorted(unknown)}; say in tools/study/manifest.py which script makes them")
    entries = {name: (by, (data / name).read_bytes()) for name, by in made.items()}
    table = {
        name: {"script": by, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        for name, (by, raw) in entries.items()
    }
    return json.dumps(table, indent=1) + "\n"


def write(*rooms: str) -> None:
    """Write the manifests of these rooms, or of all."""
    for room in rooms or dict.fromkeys(key.partition("/")[0] for key in MADE_BY):
        (ROOMS / room / "data/manifest.json").write_text(manifest(room), "utf-8")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write()


if __name__ == "__main__":
    main()
