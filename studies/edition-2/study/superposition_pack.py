"""Put finished results into the package, with their hashes: `data/superposition` -> `src/circuitkit/superposition/data`.

python -m tools superposition-pack --from data/superposition
"""

import argparse
import shutil
from pathlib import Path

from tools.study import manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, default=Path("data/superposition"))
    source = parser.parse_args().source
    target = manifest.ROOMS / "superposition/data"
    for name in (key.partition("/")[2] for key in manifest.MADE_BY if key.startswith("superposition/")):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    manifest.write("superposition")
    print(manifest.manifest("superposition"))


if __name__ == "__main__":
    main()
