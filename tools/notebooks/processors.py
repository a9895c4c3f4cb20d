"""Run every notebook on simulated other processors and name each cell whose text or asserts differ.

    python -m tools processors                                every notebook on seven processors
    python -m tools processors book/03-*.ipynb --seeds 1 2 3  these, with these seeds of the last-bit test
    python -m tools processors --only "seed 1" --ulps 4       larger flips: what stands them has a margin
    python -m tools processors --log _build/processors.jsonl  go on where a stopped run ended

Torch without vector code, with older vector code, MKL's code that is the same everywhere, two threads, and processors
that round otherwise (`last_bit.py`). Runs are forks of one warm process for each set of environment variables.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tools.notebooks import warm
from tools.notebooks.cold_runs import label
from tools.notebooks.execute import ENVIRONMENT, ROOT, notebooks

SEEDS = (1, 2, 3)
PATIENCE = 3600  # seconds after which a notebook counts as one that hangs


class Processor(NamedTuple):
    """How one is simulated: variables that torch and MKL read when they are loaded, and arguments of a run."""

    name: str
    environment: dict[str, str] = {}
    arguments: dict[str, Any] = {}


def processors(seeds=SEEDS, ulps: int = 1) -> list[Processor]:
    """The processors that the book's outputs must not depend on."""
    two = {name: "2" for name in ENVIRONMENT if name.endswith("NUM_THREADS")}
    two["OMP_WAIT_POLICY"] = (
        "passive"  # a thread that waits leaves its core to others, or busy machines crawl
    )
    return [
        Processor("no vector code", {"ATEN_CPU_CAPABILITY": "default"}),
        Processor("AVX2", {"ATEN_CPU_CAPABILITY": "avx2"}),
        Processor("MKL compatible", {"MKL_CBWR": "COMPATIBLE"}),
        Processor("two threads", two, {"threads": 2}),
        *(Processor(f"last bit, seed {seed}", {}, {"seed": seed, "ulps": ulps}) for seed in seeds),
    ]


def of_this_commit(all_of_them: list[Processor]) -> Processor:
    """One of them, drawn by the commit, whose whole history need not be there; in a tree without one by the day."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        turn = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout, 16)
    except (OSError, subprocess.CalledProcessError):
        turn = int(time.time()) // 86400
    return all_of_them[turn % len(all_of_them)]


def start(processor: Processor, *imported: str) -> warm.Server:
    """A warm process on this processor; with names, it imports these alone."""
    return warm.Server(
        ENVIRONMENT | {"MPLBACKEND": "agg"} | processor.environment, imported or warm.IMPORTED
    )


def commit() -> str:
    """Short name of the commit that runs, with a + where files differ from it; the day where there is no history."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "describe",
        "--always",
        "--exclude=*",
        "--abbrev=8",
        "--dirty=+",
    ]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return time.strftime("%Y-%m-%d")


class Log:
    """Runs as lines of JSON, each added when it ends: a stopped matrix goes on where it was.

    A line counts again for the same processor and the same text of the notebook, but for the library's seal in its first
    cell, which every change of the library changes. It names the commit that ran.
    """

    def __init__(self, path: Path | None):
        self.path, self.lines = path, {}
        if path is not None and path.exists():
            for line in path.read_text("utf-8").splitlines():
                with suppress(ValueError):  # half a line of a run that was killed
                    entry = json.loads(line)
                    self.lines[entry["processor"], entry["notebook"], entry["text"]] = entry

    def run(self, server: warm.Server, processor: Processor, path: Path) -> dict[str, Any]:
        """The line of this run; it is made where the log has none."""
        text = re.sub(rb"[0-9a-f]{64}", b"", path.read_bytes())
        key = processor.name, label(path), hashlib.sha256(text).hexdigest()[:16]
        if key not in self.lines:
            at = commit()
            found, seconds = run(server, processor, path)
            entry = dict(zip(("processor", "notebook", "text"), key, strict=True))
            entry |= {"found": found, "seconds": round(seconds or 0), "commit": at}
            if seconds is None:  # nothing is known of it: the next start tries again
                return entry | {"ended": False}
            self.lines[key] = entry
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(self.lines[key], ensure_ascii=False) + "\n")
        return self.lines[key]


def run(server: warm.Server, processor: Processor, path: Path) -> tuple[list[str], float | None]:
    """Each cell of a notebook that differs on this processor, in words, and the seconds that it took; None: it did not end."""
    arguments = {"seconds": PATIENCE} | processor.arguments
    try:
        found, seconds = server.call("tools.notebooks.run:departures", path=str(path), **arguments)
    except RuntimeError as error:
        return [f"{error}. After {arguments['seconds']} seconds a run is cut off."], None
    return [f"cell {cell}: {what}: {detail}" for cell, what, detail in found], seconds


def matrix(chosen: list[Processor], paths: list[Path], log: Log, workers: int, start=start) -> int:
    """Every notebook on every processor, each run told when it ends; 1 when any differs, else 0."""
    begin, wrong, runs, old, now = time.perf_counter(), 0, 0, 0, commit()
    with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        servers: dict[str, Any] = {}
        for processor in chosen:
            kind = str(processor.environment)
            if kind not in servers:
                servers[kind] = stack.enter_context(start(processor))
            over = partial(log.run, servers[kind], processor)
            for path, entry in zip(paths, pool.map(over, paths), strict=True):
                said = "DIFFERS" if entry["found"] else "same"
                if not entry.get("ended", True):
                    said = "DID NOT END"
                print(
                    f"{processor.name}, {label(path)}: {said}, {entry['seconds']} s, {entry['commit']}",
                    flush=True,
                )
                for line in entry["found"]:
                    print(f"  {line}", flush=True)
                runs += 1
                wrong += bool(entry["found"])
                old += entry["commit"] != now
    size, took = f"{len(paths)} notebooks x {len(chosen)} processors", time.perf_counter() - begin
    older = f"; {old} of them are of another commit than this" if old else ""
    print(f"{size}: {wrong} of {runs} runs differ or did not end, {took:.0f} s{older}")
    return 1 if wrong else 0


def main(arguments: list[str] | None = None, start=start) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all of book/ by default")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS, help="of the last-bit test")
    parser.add_argument("--only", help="part of the names of processors; all by default")
    parser.add_argument(
        "--ulps",
        type=int,
        default=1,
        help="size of the flips; 2 and 4 leave the promise and show the margin",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--log", type=Path, help="add each run to this file, and leave out what stands there"
    )
    options = parser.parse_args(arguments)
    chosen = [p for p in processors(options.seeds, options.ulps) if (options.only or "") in p.name]
    return matrix(chosen, options.paths or notebooks(), Log(options.log), options.workers, start)


if __name__ == "__main__":
    sys.exit(main())
