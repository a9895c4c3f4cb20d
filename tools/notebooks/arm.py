"""Run notebooks on an emulated ARM processor, with another torch, and name each cell whose text or asserts differ.

    python -m tools arm                            every notebook; hours
    python -m tools arm book/04-*.ipynb            these, some ten minutes each
    python -m tools arm --log _build/arm/log.jsonl go on where a stopped run ended

QEMU's user mode runs Debian's Python for arm64 in a folder, `_build/arm/debian`: `debootstrap` fetches and unpacks its
packages, nothing is installed and nothing of this machine's changes. pip puts the locked packages for that processor
into `_build/arm/packages`. Torch alone has another version, the last whose wheel for ARM needs no CUDA libraries.
What differs is told as `python -m tools processors` tells it.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tools.notebooks import warm
from tools.notebooks.execute import ENVIRONMENT, ROOT, notebooks
from tools.notebooks.processors import Log, Processor, matrix

BUILD = ROOT / "_build/arm"
DEBIAN, PACKAGES = BUILD / "debian", BUILD / "packages"
SUITE, PYTHON = "bookworm", "3.11"
INCLUDED = "python3,libgomp1,libstdc++6"
TORCH = "2.8.0"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
PATIENCE = (
    4 * 3600
)  # seconds for a notebook: emulated, chapter 5 takes more than one hour of a core that others use
NEEDED = ("circuitkit-book", "ipython", "nbformat", "nbval")
"""What a run imports; what these require comes with them."""
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
THERE = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": f"{PYTHON}.0",
    "python_version": PYTHON,
    "sys_platform": "linux",
}
"""What markers of requirements are asked on that machine."""


def required(names: tuple[str, ...] = NEEDED) -> set[str]:
    """Names of all packages that these need on that machine, as the packages installed here say."""
    found: dict[str, set[str]] = {}
    cuda = set(
        re.findall(r"^([\w.-]+)==", (ROOT / "requirements-cuda.txt").read_text("utf-8"), re.M)
    )

    def walk(name: str, extras: set[str]) -> None:
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in cuda or (key in found and extras <= found[key]):
            return
        found.setdefault(key, set()).update(extras)
        for line in distribution(name).requires or ():
            need = Requirement(line)
            if need.marker is None or any(
                need.marker.evaluate(THERE | {"extra": extra}) for extra in ("", *extras)
            ):
                walk(need.name, need.extras)

    for name in names:
        walk(name, set())
    return set(found)


def locked(names: set[str], lock: str) -> str:
    """The lines of the lock, with their hashes, of these packages."""
    blocks = re.findall(r"^[\w.-]+==(?:.*\\\n)*.*\n", lock, re.M)
    return "".join(block for block in blocks if re.match(r"[\w.-]+", block)[0].lower() in names)


def emulator() -> str:
    """The program that runs ARM's machine code, or the end with a sentence."""
    found = next(filter(None, map(shutil.which, EMULATORS)), None)
    if found is None or sys.platform != "linux":
        raise SystemExit(
            "An ARM processor is emulated by QEMU's user mode, on Linux. "
            "Install it (sudo apt-get install qemu-user-static debootstrap), and start again."
        )
    return found


def unpack_debian() -> None:
    """Python for ARM in a folder. Where the user is not root, `sudo` asks: debootstrap wants to be root."""
    if not shutil.which("debootstrap") or not shutil.which("dpkg"):
        raise SystemExit(
            "Python for ARM is fetched by debootstrap and unpacked by dpkg. "
            "Install them (sudo apt-get install debootstrap), and start again."
        )
    root = [] if os.geteuid() == 0 else ["sudo"]
    if root and not shutil.which("sudo"):
        raise SystemExit(
            "debootstrap must run as root, and there is no sudo: start `make arm` once as root."
        )
    print(f"Debian's Python for ARM into {DEBIAN.relative_to(ROOT)}", flush=True)
    subprocess.run([*root, "rm", "-rf", str(DEBIAN)], check=True)
    DEBIAN.mkdir(parents=True)
    options = ["--foreign", "--arch=arm64", "--variant=minbase", f"--include={INCLUDED}"]
    subprocess.run(
        [*root, "debootstrap", *options, SUITE, str(DEBIAN)], check=True, stdout=subprocess.DEVNULL
    )
    for package in sorted(DEBIAN.glob("var/cache/apt/archives/*.deb")):
        subprocess.run([*root, "dpkg", "-x", str(package), str(DEBIAN)], check=True)
    if root:  # so that `make clean` can delete it
        subprocess.run([*root, "chown", "-R", str(os.getuid()), str(DEBIAN)], check=True)


def fetch_packages() -> None:
    """The locked packages for ARM, by their hashes, and torch."""
    print(
        f"The locked packages for ARM and torch {TORCH} into {PACKAGES.relative_to(ROOT)}",
        flush=True,
    )
    shutil.rmtree(PACKAGES, ignore_errors=True)
    PACKAGES.mkdir(parents=True)
    lines = BUILD / "requirements.txt"
    lines.write_text(locked(required() - {"torch"}, (ROOT / "requirements.txt").read_text("utf-8")))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
    ]
    there = [
        "--target",
        str(PACKAGES),
        "--python-version",
        PYTHON,
        *(f"--platform={name}" for name in PLATFORMS),
    ]
    subprocess.run([*pip, *there, "--require-hashes", "-r", str(lines)], check=True)
    subprocess.run([*pip, *there, "--only-binary=:all:", f"torch=={TORCH}"], check=True)


def state() -> str:
    """What the two folders are made from."""
    made_from = [SUITE, INCLUDED, TORCH, *NEEDED, (ROOT / "requirements.txt").read_text("utf-8")]
    return hashlib.sha256("\0".join(made_from).encode()).hexdigest()


def prepare() -> None:
    """Make both folders, unless they stand there complete."""
    stamp = BUILD / "made-from"
    if stamp.exists() and stamp.read_text() == state():
        return
    stamp.unlink(missing_ok=True)
    unpack_debian()
    fetch_packages()
    stamp.write_text(state())


class Emulated:
    """Another machine's Python: calls a function in a process of its own, as `warm.Server` does in a fork."""

    def __init__(self, command: list[str], **environment: str):
        self.command = command
        self.environment = ENVIRONMENT | {"MPLBACKEND": "agg", "PYTHONUTF8": "1"} | environment

    def call(self, function: str, **arguments) -> Any:
        request = {"function": function, "arguments": arguments, "environment": self.environment}
        command = [*self.command, str(warm.FILE), "once"]
        home = BUILD / "home"
        home.mkdir(parents=True, exist_ok=True)
        environment = self.environment | {"HOME": str(home), "PATH": os.environ["PATH"]}
        given = json.dumps(request | {"environment": environment})
        done = subprocess.run(
            command, input=given, env=environment, stdout=subprocess.PIPE, text=True
        )
        if done.returncode or not done.stdout:
            raise RuntimeError(f"{function} of {arguments} ended with status {done.returncode}")
        return json.loads(done.stdout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def start(_: Processor) -> Emulated:
    """The emulated machine. `-L` makes QEMU look for libraries in Debian's folder first."""
    command = [emulator(), "-L", str(DEBIAN), str(DEBIAN / f"usr/bin/python{PYTHON}")]
    return Emulated(command, PYTHONPATH=os.pathsep.join(map(str, (PACKAGES, ROOT / "src"))))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all of book/ by default")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--log", type=Path, help="add each run to this file, and leave out what stands there"
    )
    options = parser.parse_args(arguments)
    emulator()
    prepare()
    one = Processor(f"ARM, torch {TORCH}", {}, {"seconds": PATIENCE})
    return matrix([one], options.paths or notebooks(), Log(options.log), options.workers, start)


if __name__ == "__main__":
    sys.exit(main())
