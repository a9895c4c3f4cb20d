"""Try the book on what Colab is known to have preinstalled, without Colab.

    python -m tools colab                                every set in colab/, every notebook
    python -m tools colab --sets 2026.04                 one set
    python -m tools colab --notebooks book/01-*.ipynb    some notebooks; with no path after it, none

First the install of the setup cell, asked of pip itself: an environment in which every package of the set *looks*
installed, and the report of `pip install --dry-run`. It fails when pip would replace a preinstalled package, or when
something that the library needs would be missing. Then the notebooks: a fresh environment with the set's own versions of
what the book imports (but this Python, and this torch), a stub of `google.colab`, a folder of its own and no network. Every
notebook finds the wheel beside it, as after an upload; one more finds it in a release, in a folder that stands for the
book's home. What is printed must be what is stored; pictures are not compared.
"""

import argparse
import configparser
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from circuitkit.figures import _live as live
from tools.notebooks.execute import merged, notebooks
from tools.notebooks.setup_cell import locked, setup_source, with_cell
from tools.publish import wheel as wheels_of
from tools.publish.home import Home, home

ROOT = Path(__file__).resolve().parents[2]
SETUP_SECONDS = 15
UNUSED = ("fancy-einsum", "transformers-stream-generator")
"""Required by transformer-lens's metadata and imported nowhere in it (a test looks)."""
OLDER = ("transformers",)
"""May be older than transformer-lens's metadata asks for: every notebook is run with the older version below."""
IMPORTED = ("circuitkit-book", "transformer-lens", "circuitsvis")
KERNEL = ("ipykernel", "ipython", "ipywidgets", "pip")
NOT_TAKEN = ("torch", "setuptools", "pip")
"""Packages whose versions are this machine's: torch has CPU builds for few Pythons, and asks for its own setuptools."""
GUARD = """\
import socket

def refuse(*args, **kwargs):
    raise OSError("colab_check: the network is cut")

socket.create_connection = socket.getaddrinfo = socket.socket.connect = socket.socket.connect_ex = refuse
"""


@dataclass(frozen=True)
class PackageSet:
    """What one Colab runtime has preinstalled."""

    name: str
    python: str
    complete: bool
    packages: dict[str, str]
    """Canonical name and version; a version whose last digits are not known ends in `.*`."""

    def version(self, name: str) -> Version:
        """The version, or the lowest that its known digits allow."""
        return Version(self.packages[name].removesuffix(".*"))


def read_set(path: Path) -> PackageSet:
    """Read a constraint file whose comments say Python version, date, origin and whether it is complete."""
    text = path.read_text("utf-8")
    facts = dict(re.findall(r"^# (python|date|origin|complete): (.+)$", text, re.M))
    if missing := {"python", "date", "origin", "complete"} - set(facts):
        raise ValueError(
            f"{path.name} does not say its {', '.join(sorted(missing))}; add a line such as `# python: 3.12.13`"
        )
    pairs = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", text, re.M)
    packages = {canonicalize_name(name): version for name, version in pairs}
    return PackageSet(path.stem, facts["python"], facts["complete"].startswith("yes"), packages)


# --- the install ---------------------------------------------------------------------------------------------------


def planned(runtime: PackageSet, arguments: list[str], folder: Path) -> tuple[list[dict], str]:
    """The metadata of what pip would install where the set is installed, and the version of the Python that was asked."""
    python = interpreter(runtime.python)
    subprocess.run([python, "-m", "venv", folder], check=True)
    inside = folder / "bin" / "python"
    where = "import sysconfig, platform; print(sysconfig.get_path('purelib'), platform.python_version())"
    site, version = subprocess.run(
        [inside, "-c", where], capture_output=True, text=True, check=True
    ).stdout.split()
    for name in runtime.packages:
        if name != "pip":
            fake_install(Path(site), name, str(runtime.version(name)))
    command = [inside, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip refused {arguments}:\n{done.stderr.strip()}")
    return [item["metadata"] for item in json.loads(done.stdout)["install"]], version


def interpreter(version: str) -> str:
    """A Python of the same minor version from the path or from pyenv; this one if there is none."""
    minor = ".".join(version.split(".")[:2])
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python"))
    found = [shutil.which(f"python{minor}"), *map(str, pyenv), sys.executable]
    works = (
        path
        for path in found
        if path and not subprocess.run([path, "-c", ""], capture_output=True).returncode
    )
    return next(works)


def fake_install(site: Path, name: str, version: str) -> None:
    """What makes pip believe that a package is installed."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "RECORD").write_text("")
    (folder / "INSTALLER").write_text("pip\n")


def judged(runtime: PackageSet, plan: list[dict]) -> tuple[list[str], list[str]]:
    """Faults of a plan, and remarks about it."""
    added = {canonicalize_name(item["name"]): Version(item["version"]) for item in plan}
    faults, remarks, unknown = [], [], []
    for name in sorted(added.keys() & runtime.packages.keys()):
        faults.append(
            f"{name} {runtime.packages[name]} is preinstalled and would be replaced by {added[name]}"
        )
    environment = default_environment() | {"extra": "", "python_full_version": runtime.python}
    environment["python_version"] = ".".join(runtime.python.split(".")[:2])
    for item in plan:
        for line in item.get("requires_dist") or ():
            need = Requirement(line)
            if need.marker and not need.marker.evaluate(environment):
                continue
            name = canonicalize_name(need.name)
            if name in added or name in runtime.packages:
                version = added.get(name) or runtime.version(name)
                if not need.specifier.contains(version, prereleases=True):
                    text = f"{name} {version} where {item['name']} asks for {need.specifier}"
                    (remarks if name in OLDER and name not in added else faults).append(text)
            elif name in UNUSED:
                remarks.append(f"{name} left out: {item['name']} never imports it")
            elif runtime.complete:
                faults.append(f"{name} is missing, and {item['name']} needs it")
            else:
                unknown.append(name)
    if unknown:
        remarks.append(f"not known whether these are there: {', '.join(dict.fromkeys(unknown))}")
    return faults, list(dict.fromkeys(remarks))


# --- the notebooks -------------------------------------------------------------------------------------------------


def needed(names: tuple[str, ...] = IMPORTED) -> list[str]:
    """What the library and the packages it adds require beyond themselves, with this Python's versions of torch and co."""
    lacking = {line.partition("==")[0] for line in locked()} | set(UNUSED) | set(IMPORTED)
    environment = default_environment() | {"extra": ""}
    wanted = [
        Requirement(line) for name in names for line in importlib.metadata.requires(name) or ()
    ]
    direct = {
        canonicalize_name(need.name)
        for need in wanted
        if not need.marker or need.marker.evaluate(environment)
    }
    return sorted(direct - lacking)


def make_environment(runtime: PackageSet, folder: Path) -> Path:
    """A fresh environment with the set's versions of what the book imports; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    lines = [
        f"{name}=={version}" for name, version in runtime.packages.items() if name not in NOT_TAKEN
    ]
    lines.append(f"torch=={importlib.metadata.version('torch')}")
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(lines) + "\n")
    python = folder / "bin" / "python"
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        constraints,
        *needed(),
        *KERNEL,
    ]
    subprocess.run([str(part) for part in pip], check=True)
    return python


def stub(folder: Path) -> Path:
    """A folder for PYTHONPATH with the little of `google.colab` that is used, and a start-up file that cuts the network."""
    (folder / "google" / "colab").mkdir(parents=True)
    (folder / "google" / "colab" / "__init__.py").write_text("")
    (folder / "google" / "colab" / "output.py").write_text(
        "def register_callback(name, answer):\n    pass\n"
    )
    (folder / "sitecustomize.py").write_text(GUARD)
    return folder


def kernel_of(python: Path) -> type[AsyncKernelManager]:
    """Kernels of that Python, with `google.colab` imported as Colab's own kernels have it."""
    start = [
        "-m",
        "ipykernel_launcher",
        "-f",
        "{connection_file}",
        "--IPKernelApp.exec_lines=import google.colab",
    ]

    class Kernel(AsyncKernelManager):
        @property
        def kernel_spec(self) -> KernelSpec:
            return KernelSpec(
                argv=[str(python), "-Xfrozen_modules=off", *start],
                display_name="Colab",
                language="python",
            )

    return Kernel


def run_notebook(
    path: Path, source: str, python: Path, wheels: Path, stubs: Path, beside=()
) -> tuple[list[str], str, float]:
    """Differences between stored and fresh outputs, what the setup cell printed, and its processor seconds.

    `source` takes the place of the setup cell, and the files `beside` lie beside the notebook.
    """
    stored, fresh = nbformat.read(path, as_version=4), nbformat.read(path, as_version=4)
    with_cell(fresh, source, path.name)
    code = [cell for cell in fresh.cells if cell.cell_type == "code"]
    environment = os.environ | {
        "PYTHONPATH": str(stubs),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }
    environment |= {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    environment |= {"HOME": str(stubs), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    faults, used = [], []
    with tempfile.TemporaryDirectory() as folder:
        for file in beside:
            shutil.copy(file, folder)
        client = NotebookClient(
            fresh,
            kernel_manager_class=kernel_of(python),
            timeout=240,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=40"],
        )
        client.on_cell_executed = lambda **_: used.append(processor_seconds(client))
        try:
            client.execute(env=environment)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            faults.append(f"did not run: {str(error).strip().splitlines()[-1]}")
    said = "".join(output.get("text", "") for output in code[0].outputs)
    took = used[0] if used else 0.0
    if not said.endswith("| ready\n"):
        faults.append(f"the setup cell did not get ready: {said.strip()[-300:]}")
    elif took > SETUP_SECONDS:
        faults.append(
            f"the setup cell took {took:.1f} s of processor time, more than {SETUP_SECONDS}"
        )
    before = [cell for cell in stored.cells if cell.cell_type == "code"]
    for number, (old, new) in enumerate(zip(before[1:], code[1:], strict=True), start=2):
        if not faults and printed(old) != printed(new):
            faults.append(
                f"code cell {number} prints something else: {difference(printed(old), printed(new))}"
            )
    return faults, said, took


def uploaded(here: Home, wheel: Path) -> tuple[str, list[Path]]:
    """The setup cell as it is, and the wheel beside the notebook."""
    return setup_source(here, locked()), [wheel]


def released(here: Home, wheel: Path, folder: Path) -> tuple[str, list[Path]]:
    """The setup cell of a book with a home, which is a folder here, and nothing beside the notebook."""
    release = folder / "home" / "releases" / "download" / here.tag
    release.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, release)
    return setup_source(here._replace(url=(folder / "home").as_uri()), locked()), []


def processor_seconds(client: NotebookClient) -> float:
    """Processor time of the kernel and what it started; unlike the clock, it does not count what else the machine does."""
    used = psutil.Process(client.km.provisioner.pid).cpu_times()
    return used.user + used.system + used.children_user + used.children_system


def printed(cell) -> list[str]:
    """The texts of a cell's outputs after the replacements that `make test` makes as well; pictures left out.

    So is what an attention view asks the kernel for, which it does on Colab only.
    """
    rules = configparser.ConfigParser(interpolation=None)
    rules.read(ROOT / "tests" / "notebooks" / "sanitize.cfg")
    texts = []
    for output in merged(list(cell.outputs)):
        for kind, text in sorted(
            {"stream": output.get("text", ""), **output.get("data", {})}.items()
        ):
            if not kind.startswith("image/") and text:
                for rule in rules.sections():
                    text = re.sub(rules[rule]["regex"], rules[rule].get("replace", ""), text)
                texts.append(f"{output.get('name', kind)}: {text.replace(live.ASK_COLAB, '')}")
    return texts


def difference(old: list[str], new: list[str]) -> str:
    """The first line that differs."""
    for one, other in zip("\n".join(old).splitlines(), "\n".join(new).splitlines(), strict=False):
        if one != other:
            return f"stored {one[:90]!r}, fresh {other[:90]!r}"
    return f"{len(old)} outputs stored, {len(new)} fresh"


# --- the command ---------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = sorted((ROOT / "colab").glob("*.txt"), reverse=True)
    parser.add_argument(
        "--sets", nargs="*", default=[path.stem for path in known], help="names of files in colab/"
    )
    parser.add_argument(
        "--notebooks", nargs="*", type=Path, default=notebooks(), help="all of book/ by default"
    )
    options = parser.parse_args(arguments)
    failed = False
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wheels, stubs = folder / "wheels", stub(folder / "stubs")
        wheels.mkdir()
        wheel = wheels_of.build(folder / "release")
        here = home()._replace(seal=wheels_of.seal(wheel))
        fetch = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            wheels,
            *locked(),
        ]
        subprocess.run([str(part) for part in fetch], check=True)
        routes = [(path, "uploaded", *uploaded(here, wheel)) for path in options.notebooks]
        routes += [
            (path, "from home", *released(here, wheel, folder)) for path in options.notebooks[:1]
        ]
        for name in options.sets:
            runtime = read_set(ROOT / "colab" / f"{name}.txt")
            plan, asked = planned(
                runtime, ["--no-deps", str(wheel), *locked()], folder / f"plan-{name}"
            )
            faults, remarks = judged(runtime, plan)
            failed |= bool(faults)
            added = ", ".join(f"{item['name']} {item['version']}" for item in plan)
            whole = "complete" if runtime.complete else f"{len(runtime.packages)} known packages"
            print(
                f"\n{name}, Python {runtime.python} (asked {asked}), {whole}: {'FAILS' if faults else 'nothing changed'}"
            )
            print(
                f"  adds {added}",
                *(f"  FAULT {fault}" for fault in faults),
                *map("  note {}".format, remarks),
                sep="\n",
            )
            if faults or not options.notebooks:
                continue
            python = make_environment(runtime, folder / f"env-{name}")
            for path, route, source, beside in routes:
                start = time.perf_counter()
                differ, _, took = run_notebook(path, source, python, wheels, stubs, beside)
                failed |= bool(differ)
                state, seconds = "; ".join(differ) or "as stored", time.perf_counter() - start
                print(
                    f"  {path.name:36s} {route:9s} {seconds:6.1f} s, setup {took:4.1f} s: {state}",
                    flush=True,
                )
                uninstall = [
                    python,
                    "-m",
                    "pip",
                    "uninstall",
                    "--quiet",
                    "--yes",
                    "circuitkit-book",
                    *needed_again(),
                ]
                subprocess.run([str(part) for part in uninstall], check=True)
    return int(failed)


def needed_again() -> list[str]:
    """What the setup cell must install anew for the next notebook."""
    return [line.partition("==")[0] for line in locked()]


if __name__ == "__main__":
    sys.exit(main())
