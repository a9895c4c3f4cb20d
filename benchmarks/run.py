"""Run every benchmark and print one table.

    python benchmarks/run.py               all of benchmarks/bench_*.py
    python benchmarks/run.py book models   these

A benchmark is a script that prints lines `name value limit` (a name without spaces; `-` for no limit). Values are
ratios or differences inside one run wherever that is possible, so that they mean the same on another machine.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def measure(path: Path) -> list[tuple[str, float, float | None]]:
    """The lines that one benchmark prints."""
    env = os.environ | {
        "TQDM_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(HERE.parent),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path)], stdout=subprocess.PIPE, text=True, env=env
    )
    if done.returncode:
        raise SystemExit(f"{path.name} failed")
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    return [
        (name, float(value), None if limit == "-" else float(limit)) for name, value, limit in rows
    ]


def main() -> int:
    wanted = sys.argv[1:]
    paths = [
        path
        for path in sorted(HERE.glob("bench_*.py"))
        if not wanted or path.stem.removeprefix("bench_") in wanted
    ]
    print(f"{'benchmark':<48} {'value':>9} {'limit':>9}")
    over = []
    for path in paths:
        start = time.perf_counter()
        for name, value, limit in measure(path):
            late = limit is not None and value > limit
            over += [name] if late else []
            print(
                f"{name:<48} {value:>9.3g} {'-' if limit is None else f'{limit:g}':>9}{'  OVER' if late else ''}",
                flush=True,
            )
        print(f"  ({path.name}: {time.perf_counter() - start:.0f} s)", flush=True)
    if over:
        print(f"over the limit: {', '.join(over)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
