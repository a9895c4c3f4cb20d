"""Write requirements.txt and requirements-cuda.txt: exact versions with hashes, for Linux, macOS, Windows and each Python.

    make lock                     what is locked stays, as long as pyproject.toml allows it
    make lock UPGRADE=numpy       this package moves to the newest version that is allowed (all of them: UPGRADE=all)

`uv pip compile` resolves the dependencies and the group `dev` of pyproject.toml. torch is the one package that is not the
same for everybody: on Linux its public build is for CUDA and asks for about twenty packages more, and the build for the
processor alone has the same version, other files and another index. No single list with hashes can hold both, so those
packages have a file of their own, which `make env` installs only when the torch that came asks for them.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CUDA = re.compile(r"(nvidia|cuda)-|triton==")
"""Packages that only the CUDA build of torch asks for."""
NOT_HERE = ("httpx2-jsfetch",)
"""For Python in a browser."""
ALSO = {"torch==2.13.0": ("6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",)}
"""Hashes of builds for the processor alone, with which the outputs were made: 2.13.0+cpu, cp311, Linux x86-64."""
HEAD = "# {what}\n# Written by `make lock` from pyproject.toml. Install with `pip install --no-deps --require-hashes -r {name}`.\n"
WHAT = {
    "requirements.txt": "The exact environment in which the book is built and tested, for Python {python}.",
    "requirements-cuda.txt": "What the CUDA build of torch needs beside requirements.txt, on Linux.",
}


def blocks(lock: str) -> list[str]:
    """One text for each package: its line and its hashes."""
    return re.findall(r"^\S.*\\\n(?:    --hash=.*\n?)+", lock, re.M)


def split(compiled: str) -> dict[str, str]:
    """What each of the two files says."""
    python = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "requires-python"
    ]
    found = {
        name: HEAD.format(what=what.format(python=python), name=name) for name, what in WHAT.items()
    }
    for block in blocks(compiled):
        for extra in ALSO.get(block.split()[0], ()):
            if extra not in block:
                block = block.rstrip("\n") + f" \\\n    --hash=sha256:{extra}\n"
        found["requirements-cuda.txt" if CUDA.match(block) else "requirements.txt"] += block
    return found


def main() -> None:
    upgrade = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "lock.txt")
        lock.write_text(
            "".join((ROOT / name).read_text("utf-8") for name in WHAT if (ROOT / name).exists())
        )
        command = [
            "uv",
            "pip",
            "compile",
            "pyproject.toml",
            "--group",
            "dev",
            "--universal",
            "--python-version",
            "3.11",
        ]
        command += [
            "--generate-hashes",
            "--no-emit-index-url",
            "--no-annotate",
            "--no-header",
            "--quiet",
        ]
        command += ["--fork-strategy", "fewest", "--output-file", str(lock)]
        command += [flag for name in NOT_HERE for flag in ("--no-emit-package", name)]
        command += (
            ["--upgrade"]
            if "all" in upgrade
            else [f for name in upgrade for f in ("--upgrade-package", name)]
        )
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
        for name, text in split(lock.read_text("utf-8")).items():
            (ROOT / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
