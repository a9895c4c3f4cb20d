"""Eight questions in transformer-lens and here: our time over theirs, and how far the answers differ (`tools/study/one_line.py`)."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.study import one_line


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    for task, ratio, off in one_line.measured():
        name = "-".join(task.title.lower().replace(",", "").split())
        print(f"{name}-time-over-transformer-lens {ratio:.3g} -")
        print(f"{name}-difference {off:.2g} 1e-5")


if __name__ == "__main__":
    main()
