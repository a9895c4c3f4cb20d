"""The pairs of `book/one-line.toml`: our time over transformer-lens's, and how far the answers differ.

`python benchmarks/bench_one_line.py --store` also writes the ratios into that file.
"""

import re
import sys
import time
import tomllib
from pathlib import Path

import torch

FILE = Path(__file__).resolve().parents[1] / "book/one-line.toml"
TURNS = 5


def seconds(code: str, names: dict) -> float:
    ready = compile(code, "one-line.toml", "exec")
    start = time.process_time()
    exec(ready, names)
    return time.process_time() - start


def measured(task: dict, names: dict) -> tuple[float, float]:
    """Our least time over theirs, and the largest difference over the largest answer."""
    ours, theirs = [], []
    for _ in range(TURNS):
        theirs.append(seconds(task["theirs"], names))
        expected = names["found"]
        ours.append(seconds(task["ours"], names))
    difference = (names["found"] - expected).abs().max() / expected.abs().max()
    return min(ours) / min(theirs), float(difference)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    text = FILE.read_text("utf-8")
    data = tomllib.loads(text)
    names: dict = {}
    exec(data["setup"], names)
    ratios = []
    for task in data["task"]:
        ratio, difference = measured(task, names)
        ratios.append(ratio)
        name = "-".join(task["title"].lower().replace(",", "").split())
        print(f"{name}-time-over-transformer-lens {ratio:.3g} -")
        print(f"{name}-difference {difference:.2g} 1e-5")
    if "--store" in sys.argv:
        remaining = iter(ratios)
        FILE.write_text(
            re.sub(r"(?m)^time = .*$", lambda _: f"time = {next(remaining):.2g}", text), "utf-8"
        )


if __name__ == "__main__":
    main()
