"""Speed of the skip-trigram task: CPU seconds of a sample of 300,000 prompts."""

import time

import torch

from circuitkit_book.superposition_task import SkipTrigramTask


def cpu_seconds(work) -> float:
    """CPU seconds of one call, the best of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    seconds = cpu_seconds(lambda: SkipTrigramTask(5).sample(300_000, seed=0))
    print(f"sample-300000-prompts-seconds {seconds:.3f} 1")
