"""Run every notebook from nothing, again and again, and require the stored outputs each time.

    python -m tools cold-runs --runs 10              byte for byte
    python -m tools cold-runs --runs 3 book/01-*.ipynb

Each run of each notebook is a new process in an empty folder. Other processors, and two threads, are `processors.py`.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

from nbclient.exceptions import CellExecutionError, CellTimeoutError

from tools.notebooks.execute import ROOT, execute, notebooks


def label(path: Path) -> str:
    """The name of a notebook, with its folder where the book has one."""
    book = ROOT / "book"
    return (
        str(path.resolve().relative_to(book)) if path.resolve().is_relative_to(book) else path.name
    )


def cold(path: Path) -> str | None:
    """What differs from the stored file after a run, or None."""
    fresh, stored = execute(path).splitlines(), path.read_text("utf-8").splitlines()
    if fresh == stored:
        return None
    differing = [
        number
        for number, pair in enumerate(zip(stored, fresh, strict=False), 1)
        if pair[0] != pair[1]
    ]
    where = differing[0] if differing else min(len(stored), len(fresh)) + 1
    return f"line {where}: stored {stored[where - 1 : where]}, fresh {fresh[where - 1 : where]}"[
        :400
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all of book/ by default")
    parser.add_argument("--runs", type=int, default=10, help="cold runs of each")
    options = parser.parse_args(arguments)
    paths = options.paths or notebooks()
    seconds, wrong = {path: [] for path in paths}, []
    for number in range(1, options.runs + 1):
        for path in paths:
            start = time.perf_counter()
            try:
                found = cold(path)
            except (CellExecutionError, CellTimeoutError) as error:
                found = f"{type(error).__name__}: {error}"
            seconds[path].append(time.perf_counter() - start)
            print(
                f"run {number}, {label(path)}: {'same' if found is None else 'DIFFERS: ' + found}",
                flush=True,
            )
            if found is not None:
                wrong.append(f"run {number}, {label(path)}: {found}")
    for path, taken in seconds.items():
        print(f"{label(path)}: median {statistics.median(taken):.0f} s, longest {max(taken):.0f} s")
    print(f"{len(paths)} notebooks, {options.runs} cold runs: {len(wrong)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
