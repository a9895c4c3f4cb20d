"""A quick check: the same losses as `train_on_task` in float64, and how much faster.

python -m studies.count_tables.check
"""

import time

import torch

from circuitkit.superposition import GATES, WRITES
from circuitkit_book.superposition_models import load_original
from circuitkit_book.superposition_task import train_on_task
from studies.count_tables.tables import train_by_counts


def seconds(work, *arguments, **settings):
    """A result, and the CPU time that it took."""
    start = time.process_time()
    result = work(*arguments, **settings)
    return result, time.process_time() - start


def main() -> None:
    original = load_original(4, 5, seed=13)
    for name, recipe in (("gates", GATES), ("writes", WRITES), ("no gate", WRITES.but(gate=None))):
        exact = original.to(torch.float64)
        short = recipe.but(steps=10, n_prompts=500)  # training amplifies rounding
        plain = train_on_task(exact, short, inits=2, seed=1)
        counted = train_by_counts(exact, short, inits=2, seed=1)
        largest = (plain.training_loss - counted.training_loss).abs().max().item()
        held_back = max(abs(a - b) for a, b in zip(plain.loss, counted.loss, strict=True))
        assert max(largest, held_back) < 1e-9, (name, largest, held_back)
        single, steps = original.to(torch.float32), recipe.but(steps=200)
        _, plainly = seconds(train_on_task, single, steps, inits=8, seed=1)
        _, by_counts = seconds(train_by_counts, single, steps, inits=8, seed=1)
        print(f"{name}: losses differ by {max(largest, held_back):.0e}; ", end="")
        print(f"200 steps of 8 runs {plainly:.1f} s plainly, {by_counts:.1f} s by counts")


if __name__ == "__main__":
    main()
