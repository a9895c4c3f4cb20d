"""Run every notebook from nothing, again and again, and require the stored outputs each time.

    python -m tools cold-runs --runs 10              byte for byte, one thread; then once under two threads
    python -m tools cold-runs --runs 3 book/01-*.ipynb

Each run of each notebook is a new process in an empty folder. The last run gives torch two threads, which changes the
order of sums and so the last digits: there only what the test of the notebooks compares must agree.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from tools.notebooks.execute import ENVIRONMENT, ROOT, execute, notebooks
from tools.notebooks.run import SANITIZE, comparable, first_difference

ONE_THREAD = "torch.set_num_threads(1)"


def label(path: Path) -> str:
    """The name of a notebook, with its folder where the book has one."""
    book = ROOT / "book"
    return str(path.resolve().relative_to(book)) if path.resolve().is_relative_to(book) else path.name


def cold(path: Path) -> str | None:
    """What differs from the stored file after a run, or None."""
    fresh, stored = execute(path).splitlines(), path.read_text("utf-8").splitlines()
    if fresh == stored:
        return None
    differing = [number for number, pair in enumerate(zip(stored, fresh, strict=False), 1) if pair[0] != pair[1]]
    where = differing[0] if differing else min(len(stored), len(fresh)) + 1
    return f"line {where}: stored {stored[where - 1 : where]}, fresh {fresh[where - 1 : where]}"[:400]


def threaded(path: Path, threads: int, patterns: dict[str, str]) -> str | None:
    """What differs, among what is compared, when torch has so many threads, or None."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace(ONE_THREAD, f"torch.set_num_threads({threads})")
    count = {name: str(threads) for name in ENVIRONMENT if name.endswith("NUM_THREADS")}
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / path.name
        nbformat.write(notebook, changed)
        fresh = nbformat.reads(execute(changed, environment=ENVIRONMENT | count), as_version=4)
    for number, (before, after) in enumerate(zip(notebook.cells, fresh.cells, strict=True)):
        if before.cell_type != "code" or "nbval-ignore-output" in before.metadata.get("tags", []):
            continue
        stored, found = comparable(before.outputs, patterns), comparable(after.outputs, patterns)
        if stored != found:
            return f"cell {number}: {first_difference(stored, found)}"
    return None


def main(arguments: list[str] | None = None) -> int:
    from nbval.plugin import get_sanitize_patterns

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all of book/ by default")
    parser.add_argument("--runs", type=int, default=10, help="cold runs of each")
    parser.add_argument("--threads", type=int, default=2, help="threads of the last run; 0 leaves it out")
    options = parser.parse_args(arguments)
    paths, patterns = options.paths or notebooks(), dict(get_sanitize_patterns(SANITIZE.read_text("utf-8")))
    seconds, wrong = {path: [] for path in paths}, []

    def note(path: Path, what: str, run) -> None:
        start = time.perf_counter()
        try:
            found = run()
        except (CellExecutionError, CellTimeoutError) as error:
            found = f"{type(error).__name__}: {error}"
        seconds[path].append(time.perf_counter() - start)
        print(f"{what}, {label(path)}: {'same' if found is None else 'DIFFERS: ' + found}", flush=True)
        if found is not None:
            wrong.append(f"{what}, {label(path)}: {found}")

    for number in range(1, options.runs + 1):
        for path in paths:
            note(path, f"run {number}", lambda path=path: cold(path))
    for path in paths if options.threads else ():
        note(path, f"{options.threads} threads", lambda path=path: threaded(path, options.threads, patterns))
    for path, taken in seconds.items():
        print(f"{label(path)}: median {statistics.median(taken):.0f} s, longest {max(taken):.0f} s")
    asked = f"{options.runs} cold runs" + (f" and one under {options.threads} threads" if options.threads else "")
    print(f"{len(paths)} notebooks, {asked} of {os.cpu_count()} processors: {len(wrong)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
