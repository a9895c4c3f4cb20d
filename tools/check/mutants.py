"""Plant one plausible fault at a time and require that a test notices.

    python -m tools mutants                    every list in tests/mutants/
    python -m tools mutants figures heads      these lists
    python -m tools mutants --workers 2

A list is a TOML file: `tests` (files or folders to run), `chapter`, and `[[mutant]]` entries with `name`, `where`, `old`
and `new`; a mutant may name its own `tests`. `where` is the name of a function, class, method or constant of the library,
such as `composition_scores` or `Heads.scores`, in whatever file it stands; where several are called so, `old` tells which.
A survivor that is known to be harmless carries `equivalent = "reason"`.

Faults are planted in a copy of the tree, never in the tree. Each run is a fork of a process that has imported what does not
depend on the library, and what was compiled is kept, so a mutant costs as much as its tests and one file.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "tools", "conftest.py", "pyproject.toml", "_toc.yml", "_config.yml")
TIMEOUT = (
    300  # processor seconds: a mutant that hangs is noticed, too, and a busy machine kills none
)
LEAST = 0.95  # of all mutants must be killed, whatever the reasons of the others

# Runs pytest in forks of a process that has the slow imports behind it: reads one line of arguments for each run, answers
# with the exit code and processor seconds.
SERVER = f"""
import gc, os, resource, signal, sys
gc.disable()
import beartype, hypothesis, jaxtyping, matplotlib.pyplot, numpy, pytest, safetensors.torch, scipy, torch, transformer_lens.model_bridge
torch.set_num_threads(1)
gc.collect()
gc.freeze()  # or else the first search for cycles in a fork copies all that is imported
gc.enable()
for line in sys.stdin:
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, ({TIMEOUT}, {TIMEOUT}))
        signal.alarm({10 * TIMEOUT})  # one that waits uses no processor
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1); os.dup2(quiet, 2)
        os._exit(pytest.main(line.split()))
    _, status, used = os.wait4(child, 0)
    print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
"""


@dataclass(frozen=True)
class Mutant:
    """A fault: `old` becomes `new` in the definition `where`, and one of `tests` must fail."""

    package: str
    name: str
    where: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""


def read(path: Path) -> list[Mutant]:
    table = tomllib.loads(path.read_text("utf-8"))
    return [
        Mutant(
            **{"package": path.stem, **entry, "tests": tuple(entry.get("tests", table["tests"]))}
        )
        for entry in table["mutant"]
    ]


@dataclass(frozen=True)
class Definition:
    """A piece of the library that has a name: `text[start:end]` of a file; a function's body begins at `body`."""

    path: Path
    start: int
    end: int
    body: int | None = None


@cache
def definitions(root: Path = ROOT) -> dict[str, list[Definition]]:
    """Everything in the library and its studies by its name within its file: `Heads`, `Heads.scores`; data files by theirs."""
    found: dict[str, list[Definition]] = {}
    for path in sorted([*(root / "src").rglob("*"), *(root / "tools/study").glob("*.py")]):
        if path.suffix == ".py":
            text = path.read_text("utf-8")
            starts = [0]  # of each line
            for line in text.splitlines(keepends=True):
                starts.append(starts[-1] + len(line))
            for name, node in _named(ast.parse(text).body):
                first = min(
                    [node.lineno, *(part.lineno for part in getattr(node, "decorator_list", []))]
                )
                body = (
                    starts[node.body[0].lineno - 1] if isinstance(node, ast.FunctionDef) else None
                )
                part = Definition(
                    path.relative_to(root), starts[first - 1], starts[node.end_lineno], body
                )
                found.setdefault(name, []).append(part)
        elif path.suffix in (".toml", ".js", ".css"):
            found.setdefault(path.name, []).append(
                Definition(path.relative_to(root), 0, len(path.read_text("utf-8")))
            )
    return found


def _named(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from _named(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.If):
            yield from _named(node.body + node.orelse, prefix)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (
                (prefix + name.id, node)
                for t in targets
                for name in ast.walk(t)
                if isinstance(name, ast.Name)
            )


def places(mutant: Mutant, root: Path = ROOT) -> dict[tuple[Path, int], Definition]:
    """Wherever `old` stands in a definition called `where`: file and offset."""
    found = {}
    for part in definitions(root).get(mutant.where, []):
        text = (root / part.path).read_text("utf-8")
        at = text.find(mutant.old, part.start, part.end)
        while at >= 0:
            found[part.path, at] = part
            at = text.find(mutant.old, at + len(mutant.old), part.end)
    return found


def faulty(mutant: Mutant, root: Path = ROOT) -> tuple[Path, str]:
    """The file that the fault changes, within `root`, and its text with the fault."""
    [(path, at)] = places(mutant, root)
    text = (root / path).read_text("utf-8")
    return path, text[:at] + mutant.new + text[at + len(mutant.old) :]


def misfits(mutants: list[Mutant], root: Path = ROOT) -> list[str]:
    """Entries whose `old` text is not in the definition exactly once, or which change nothing."""
    found = []
    for mutant in mutants:
        count = len(places(mutant, root))
        if count != 1 or mutant.old == mutant.new:
            known = mutant.where in definitions(root)
            why = (
                "changes nothing"
                if count == 1
                else f"found {count} times"
                if known
                else "nothing is called so"
            )
            found.append(
                f"{mutant.package}: {mutant.name}: {mutant.where}: {why}: {mutant.old[:60]!r}"
            )
    return found


class Copy:
    """A copy of the tree with a process that runs tests in it."""

    server = SERVER

    def __init__(self, folder: Path):
        self.root, self.planting = folder, 0
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(
                    source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
                )
            elif source.exists():
                shutil.copyfile(source, target)
        (folder / "book").symlink_to(ROOT / "book")
        # The copy must win over an editable install.
        threads = {
            name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        }
        env = (
            os.environ
            | threads
            | {
                "PYTHONPATH": str(folder / "src"),
                "PYTHONDONTWRITEBYTECODE": "",
                "MPLBACKEND": "agg",
                "HF_HUB_OFFLINE": "1",
            }
        )
        command = [sys.executable, "-W", "ignore", "-c", self.server]
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def test(self, tests: tuple[str, ...]) -> int:
        """pytest's exit code: 0 all passed, 1 some failed, 2 and more or negative: could not be run."""
        options = f"-x -q -W ignore::pytest.PytestAssertRewriteWarning -p no:cacheprovider -p no:xdist -p no:nbval --rootdir={self.root} -c {self.root / 'pyproject.toml'}"
        self.process.stdin.write(f"{options} {' '.join(tests)}\n")
        self.process.stdin.flush()
        code, seconds = self.process.stdout.readline().split()
        self.seconds = float(seconds)
        return int(code)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The fault is in the copy inside the block, and only there. A date of its own keeps what was compiled from hiding it."""
        changed, text = faulty(mutant, self.root)
        path = self.root / changed
        original, dates = (
            path.read_text("utf-8"),
            (path.stat().st_atime_ns, path.stat().st_mtime_ns),
        )
        path.write_text(text, "utf-8")
        self.planting += 1
        os.utime(
            path, ns=(dates[0], dates[1] - 10**9 * self.planting)
        )  # compiled files know whole seconds
        try:
            yield
        finally:
            path.write_text(original, "utf-8")
            os.utime(path, ns=dates)

    def killed(self, mutant: Mutant) -> bool:
        with self.planted(mutant):
            return self.test(mutant.tests) != 0

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(TIMEOUT)
        self.process.stdout.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", help="names of lists; all by default")
    parser.add_argument(
        "--lists", type=Path, default=ROOT / "tests/mutants", help="folder with the lists"
    )
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    lists = [
        path
        for path in sorted(options.lists.glob("*.toml"))
        if not options.packages or path.stem in options.packages
    ]
    mutants = [mutant for path in lists for mutant in read(path)]
    if wrong := misfits(mutants):
        print("These entries no longer fit the code; mend the list:", *wrong, sep="\n  ")
        return 2
    start, free = time.perf_counter(), Queue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies = [Copy(Path(folder) / str(number)) for number in range(options.workers)]
        try:
            unmutated = sorted({mutant.tests for mutant in mutants})
            if broken := [tests for tests in unmutated if copies[0].test(tests) != 0]:
                print("These tests fail without any mutant:", *map(" ".join, broken), sep="\n  ")
                return 2
            for copy in copies:
                free.put(copy)

            def try_one(mutant: Mutant) -> bool:
                copy = free.get()
                try:
                    killed, seconds = copy.killed(mutant), copy.seconds
                finally:
                    free.put(copy)
                outcome = (
                    "killed" if killed else "SURVIVED"
                )  # told at once: a run that is stopped keeps what it found
                print(f"  {mutant.package}: {mutant.name}: {outcome}, {seconds:.1f} s", flush=True)
                return killed

            killed = list(pool.map(try_one, mutants))
        finally:
            for copy in copies:
                copy.close()
    return report(mutants, killed, time.perf_counter() - start)


def report(mutants: list[Mutant], killed: list[bool], seconds: float) -> int:
    """Print killed/total and the survivors; 1 if one survives without a reason, or if too many survive."""
    survivors = [mutant for mutant, noticed in zip(mutants, killed, strict=True) if not noticed]
    for package in sorted({mutant.package for mutant in mutants}):
        outcome = [
            noticed
            for mutant, noticed in zip(mutants, killed, strict=True)
            if mutant.package == package
        ]
        print(f"{package}: {sum(outcome)}/{len(outcome)}")
    for mutant in survivors:
        print(
            f"  survived: {mutant.package}: {mutant.name} ({mutant.where}){': ' + mutant.equivalent if mutant.equivalent else ''}"
        )
    share = sum(killed) / max(len(mutants), 1)
    print(
        f"killed {sum(killed)}/{len(mutants)} = {share:.1%} in {seconds:.0f} s; at least {LEAST:.0%} are required"
    )
    return 1 if share < LEAST or any(not mutant.equivalent for mutant in survivors) else 0


if __name__ == "__main__":
    sys.exit(main())
