"""What the two commands need from this machine: an environment with the locked packages, and a browser to open pages in.

    python3 -m tools.check.machine environment .venv      `make env`: make it, or bring it up to date (TORCH=cpu: add `cpu`)
    python -m tools machine browser                       what `make test` does first: find a browser, or get one

The first form runs in whatever Python the machine has: only the standard library, and words where that Python is too old.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.txt", "requirements-cuda.txt")
OLDEST, NEWEST = (3, 11), (3, 13)

UNFINISHED, MADE_FROM = ".unfinished", ".made-from"
"""Files in an environment: one while it is being made, the other says afterwards from what."""
BROWSERS = (
    "chromium-headless-shell",  # draws without a window system's parts: 1.6 times the pages of a minute under load
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
IN_THE_ENVIRONMENT = {"PLAYWRIGHT_BROWSERS_PATH": "0"}
"""Where Playwright puts what it fetches: beside its own files, so that `make distclean` takes it away again."""
MANAGERS = {
    "apt-get": [
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends"],
    ],
    "dnf": [["dnf", "install", "-y", "-q"]],
    "zypper": [["zypper", "--non-interactive", "install"]],
    "pacman": [["pacman", "-Sy", "--noconfirm"]],
    "apk": [["apk", "add", "--quiet"]],
}
"""The commands of package managers; the name of a package follows the last one."""


def run(command: list[str], **env: str) -> bool:
    """Whether a command could be started and ended well; what it prints is not shown."""
    try:
        return (
            subprocess.run(
                command, env=os.environ | env, capture_output=True, timeout=900
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def manager(package: str) -> list[list[str]]:
    """The commands with which this system installs a package, as root where that is needed; none where nobody can."""
    name = next((name for name in MANAGERS if shutil.which(name)), None)
    if name is None or (os.geteuid() != 0 and not shutil.which("sudo")):
        return []
    root = (
        []
        if os.geteuid() == 0
        else ["sudo"]
        if sys.stdin.isatty()
        else ["sudo", "--non-interactive"]
    )
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive"] if name == "apt-get" else []
    *before, install = ([*root, *quiet, *command] for command in MANAGERS[name])
    return [*before, [*install, package]]


def named(commands: list[list[str]]) -> dict[str, list[list[str]]]:
    """Commands under the words that stand for them."""
    words = (
        [word for word in commands[-1] if word[0] != "-" and "=" not in word and word != "env"]
        if commands
        else []
    )
    return {" ".join(words): commands} if commands else {}


def hint(package: str) -> str:
    """How somebody who may do so installs a package."""
    return f" (sudo apt-get install {package})" if shutil.which("apt-get") else ""


# --- a browser ------------------------------------------------------------------------------------------------------
def playwrights(**env: str) -> str | None:
    """Where Playwright has its own Chromium, or would have it."""
    code = "from playwright.sync_api import sync_playwright as start\nwith start() as p: print(p.chromium.executable_path)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True
    )
    return done.stdout.strip() or None


def candidates():
    """Places where a browser may be, the cheap ones first."""
    yield from map(shutil.which, BROWSERS)
    yield playwrights()
    yield playwrights(**IN_THE_ENVIRONMENT)


@functools.cache
def browser() -> str | None:
    """The first browser of this machine that starts; `None` where there is none."""
    return next((path for path in candidates() if path and run([path, "--version"])), None)


def get_browser() -> str:
    """A browser that starts: one that is there, or one that is fetched, with one line that says how; or the end."""
    if found := browser():
        return found
    print("The pages are checked in a browser, and there is none.", end="", flush=True)
    playwright = [sys.executable, "-m", "playwright", "install", "chromium"]
    ways = {"playwright install chromium": [playwright]}
    if shutil.which("apt-get"):
        ways |= named(manager("chromium-headless-shell"))
    for name, commands in (ways | named(manager("chromium"))).items():
        print(f" {name}: ", end="", flush=True)
        browser.cache_clear()
        if [run(command, **IN_THE_ENVIRONMENT) for command in commands][-1] and (
            found := browser()
        ):
            print(f"done, {found}.", flush=True)
            return found
        print("did not work.", end="", flush=True)
    print(flush=True)
    raise SystemExit(
        f"The pages need Chromium or Google Chrome. Install one{hint('chromium')}, and start again."
    )


# --- an environment -------------------------------------------------------------------------------------------------
def state() -> str:
    """What an environment was made from: the folder, the lock and the metadata."""
    texts = [(ROOT / name).read_bytes() for name in (*LOCKS, "pyproject.toml")]
    return hashlib.sha256(b"\0".join([os.fsencode(ROOT), *texts])).hexdigest()


def python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def its_own(venv: Path) -> bool:
    """Whether the Python in a folder belongs to this folder, in a version that will do."""
    code = "import os, sys; print(*sys.version_info[:2]); print(os.fsencode(sys.prefix).hex())"
    try:
        done = subprocess.run(
            [str(python_of(venv)), "-I", "-c", code], capture_output=True, text=True
        )
    except OSError:
        return False
    if done.returncode:
        return False
    version, prefix = done.stdout.splitlines()
    belongs = Path(os.fsdecode(bytes.fromhex(prefix))).resolve() == venv.resolve()
    return belongs and OLDEST <= tuple(map(int, version.split())) <= NEWEST


def make_environment(venv: Path) -> None:
    """A new, empty environment, in place of what an interrupted one left."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        raise SystemExit(
            f"circuitkit needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}. Try: make PYTHON=python3.13"
        )
    if not run([sys.executable, "-c", "import venv, ensurepip"]):
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        ways = named(manager(package) if shutil.which("apt-get") else [])
        for name, commands in ways.items():
            print(f"This Python cannot make an environment: {name}", flush=True)
            [run(command) for command in commands]
        if not run([sys.executable, "-c", "import venv, ensurepip"]):
            raise SystemExit(
                f"make needs the modules venv and ensurepip of Python. Install them{hint(package)}, and start again."
            )
    venv.mkdir(exist_ok=True)
    for entry in venv.iterdir():
        if entry.name != UNFINISHED:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    (venv / UNFINISHED).touch()
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)


def give_pip(venv: Path) -> None:
    """pip, where an environment was made without it, as `uv venv` does."""
    python = str(python_of(venv))
    if not run([python, "-m", "pip", "--version"]):
        subprocess.run(
            [python, "-m", "ensurepip", "--default-pip"], check=True, stdout=subprocess.DEVNULL
        )


def install(venv: Path, cpu: bool) -> None:
    """The locked packages, by their hashes, and this repository."""
    give_pip(venv)
    python, lock = str(python_of(venv)), (ROOT / LOCKS[0]).read_text("utf-8")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    by_hash = [*pip, "install", "--quiet", "--no-deps", "--require-hashes", "-r"]
    if cpu:
        uv, torch = (re.search(rf"^{name}==[^ ]+", lock, re.M)[0] for name in ("uv", "torch"))
        subprocess.run([*pip, "install", "--quiet", uv], check=True)
        subprocess.run(
            [
                python,
                "-m",
                "uv",
                "pip",
                "install",
                "--python",
                python,
                "--torch-backend",
                "cpu",
                torch,
            ],
            check=True,
        )
    subprocess.run([*by_hash, str(ROOT / LOCKS[0])], check=True)
    if not run([*pip, "check"]):  # the torch that came is the one for CUDA
        subprocess.run([*by_hash, str(ROOT / LOCKS[1])], check=True)
    own = ["install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    subprocess.run([*pip, *own], check=True)
    subprocess.run([*pip, "check"], check=True)


def environment(venv: Path, cpu: bool = False) -> None:
    """Make the environment, or bring it up to date; nothing happens when it is."""
    made = venv / MADE_FROM
    if made.exists() and made.read_text() == state() and its_own(venv):
        return
    if (venv / UNFINISHED).exists():
        print(
            f"The last set-up of {venv.name} was interrupted; it starts again from nothing.",
            flush=True,
        )
        make_environment(venv)
    elif not venv.exists() or not any(venv.iterdir()):
        make_environment(venv)
    elif not its_own(venv):
        raise SystemExit(
            f"{venv} is no environment of Python 3.11 to 3.13: its {python_of(venv).name} is missing or belongs elsewhere. "
            "Move the folder away, or delete it with `make distclean`, and start again."
        )
    made.unlink(missing_ok=True)
    (venv / UNFINISHED).touch()
    install(venv, cpu)
    (venv / UNFINISHED).unlink()
    made.write_text(state())


def main() -> None:
    what, *rest = sys.argv[1:]
    try:
        if what == "browser":
            get_browser()
        else:
            environment((ROOT / rest[0]).absolute(), cpu="cpu" in rest[1:])
    except subprocess.CalledProcessError as failed:
        raise SystemExit(f"This command failed: {' '.join(failed.cmd)}") from None


if __name__ == "__main__":
    main()
