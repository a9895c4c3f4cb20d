"""The wheel of the library, and the seal by which a setup cell knows it.

    python -m tools wheel FOLDER      build it there and print its seal

The same sources give the same bytes. The seal is made from the name and the content of every file that the wheel installs,
the metadata apart; the setup cells compute it again from what pip has installed.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.check.sources import files

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
EPOCH = "315532800"  # 1980, where the times of a zip file begin


def build(folder: Path, root: Path = ROOT) -> Path:
    """Build the wheel into a folder, from a copy, so that no old build helps."""
    with tempfile.TemporaryDirectory() as place:
        for name in files(*SOURCES, root=root):
            copy = Path(place) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, copy)
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
        ]
        command += ["--no-cache-dir", "--wheel-dir", str(folder), place]
        subprocess.run(command, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH})
    (made,) = Path(folder).glob("circuitkit_book-*.whl")
    return made


def seal(wheel: Path) -> str:
    """The SHA-256 of the names and hashes of what a wheel installs."""
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if ".dist-info/" not in name and not name.endswith("/")
        ]
        found = sorted((name, hashlib.sha256(archive.read(name)).hexdigest()) for name in names)
    return hashlib.sha256(str(found).encode()).hexdigest()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    made = build(parser.parse_args(arguments).folder)
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB, sealed {seal(made)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
