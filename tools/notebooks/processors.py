"""Run every notebook on simulated other processors and name each cell whose text or asserts differ.

    python -m tools processors                                every notebook on seven processors
    python -m tools processors --seeds 1 2 3 book/03-*.ipynb  these, with these seeds of the last-bit test
    python -m tools processors --only "seed 1" --ulps 4       larger flips: what stands them has a margin

Torch without vector code, with older vector code, MKL's code that is the same everywhere, two threads, and processors
that round otherwise (`last_bit.py`). Runs are forks of one warm process for each set of environment variables.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tools.notebooks import warm
from tools.notebooks.cold_runs import label
from tools.notebooks.execute import ENVIRONMENT, ROOT, notebooks

SEEDS = (1, 2, 3)


class Processor(NamedTuple):
    """How one is simulated: variables that torch and MKL read when they are loaded, and arguments of a run."""

    name: str
    environment: dict[str, str] = {}
    arguments: dict[str, Any] = {}


def processors(seeds=SEEDS, ulps: int = 1) -> list[Processor]:
    """The processors that the book's outputs must not depend on."""
    two = {name: "2" for name in ENVIRONMENT if name.endswith("NUM_THREADS")}
    return [
        Processor("no vector code", {"ATEN_CPU_CAPABILITY": "default"}),
        Processor("AVX2", {"ATEN_CPU_CAPABILITY": "avx2"}),
        Processor("MKL compatible", {"MKL_CBWR": "COMPATIBLE"}),
        Processor("two threads", two, {"threads": 2}),
        *(Processor(f"last bit, seed {seed}", {}, {"seed": seed, "ulps": ulps}) for seed in seeds),
    ]


def of_this_commit(all_of_them: list[Processor]) -> Processor:
    """One of them, another with each commit; in a tree without history by the day."""
    command = ["git", "-C", str(ROOT), "rev-list", "--count", "HEAD"]
    try:
        turn = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        turn = int(time.time()) // 86400
    return all_of_them[turn % len(all_of_them)]


def start(processor: Processor) -> warm.Server:
    return warm.Server(ENVIRONMENT | {"MPLBACKEND": "agg"} | processor.environment)


def run(server: warm.Server, processor: Processor, path: Path) -> tuple[list[str], float]:
    """Each cell of a notebook that differs on this processor, in words, and the seconds that it took."""
    try:
        found, seconds = server.call("tools.notebooks.run:departures", path=str(path), **processor.arguments)
    except RuntimeError as error:
        return [str(error)], 0.0
    return [f"cell {cell}: {what}: {detail}" for cell, what, detail in found], seconds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all of book/ by default")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS, help="of the last-bit test")
    parser.add_argument("--only", help="part of the names of processors; all by default")
    parser.add_argument(
        "--ulps", type=int, default=1, help="size of the flips; 2 and 4 leave the promise and show the margin"
    )
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    paths, begin, wrong, runs = options.paths or notebooks(), time.perf_counter(), [], 0
    chosen = [p for p in processors(options.seeds, options.ulps) if (options.only or "") in p.name]
    with ExitStack() as stack, ThreadPoolExecutor(options.workers) as pool:
        servers: dict[str, warm.Server] = {}
        for processor in chosen:
            kind = str(processor.environment)
            if kind not in servers:
                servers[kind] = stack.enter_context(start(processor))
            over = partial(run, servers[kind], processor)
            for path, (found, seconds) in zip(paths, pool.map(over, paths), strict=True):
                print(
                    f"{processor.name}, {label(path)}: {'same' if not found else 'DIFFERS'}, {seconds:.0f} s",
                    flush=True,
                )
                for line in found:
                    print(f"  {line}", flush=True)
                runs += 1
                if found:
                    wrong.append(f"{processor.name}, {label(path)}")
    print(
        f"{len(paths)} notebooks x {len(chosen)} processors: {len(wrong)} of {runs} runs differ, {time.perf_counter() - begin:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
