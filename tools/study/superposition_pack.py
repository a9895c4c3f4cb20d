"""Put finished results into the package, with their hashes: `data/superposition` -> `src/circuitkit/superposition/data`.

python -m tools superposition-pack --from data/superposition
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path

TARGET = Path(__file__).parents[2] / "src/circuitkit/superposition/data"
MADE_BY = {
    "originals.safetensors": "tools/study/superposition_originals.py",
    "originals.csv": "tools/study/superposition_originals.py",
    "causes.csv": "tools/study/superposition_causes.py",
    "post.csv": "tools/study/superposition_post.py",
    "recipes.csv": "tools/study/superposition_recipes.py",
    "block.safetensors": "tools/study/superposition_recipes.py --block",
    "language_model.csv": "tools/study/superposition_language_model.py",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, default=Path("data/superposition"))
    source = parser.parse_args().source
    TARGET.mkdir(exist_ok=True)
    manifest = {}
    for name, script in MADE_BY.items():
        if (source / name).exists():
            shutil.copyfile(source / name, TARGET / name)
        if (TARGET / name).exists():
            raw = (TARGET / name).read_bytes()
            manifest[name] = {"script": script, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (TARGET / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(json.dumps(manifest, indent=1))


if __name__ == "__main__":
    main()
