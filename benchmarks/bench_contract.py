"""What the door of a public function costs a call."""

import time

import torch

from circuitkit._contract import Count, Fraction, Positive, public
from circuitkit.induction._stream import earlier_occurrences


@public
def scalars(k: Count = 3, share: Fraction = 0.1, scale: Positive | None = None) -> int:
    return k


def best(function, rounds: int = 30, calls: int = 300) -> float:
    """Seconds a call, the fastest of several rounds."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            function()
        taken.append(time.process_time() - start)
    return min(taken) / calls


if __name__ == "__main__":
    torch.set_num_threads(1)
    inside, rows = scalars.__wrapped__, torch.zeros(2, 4, dtype=torch.long)
    numbers = list(range(1000))
    work = best(lambda: sum(numbers))  # the reference: a thousand additions
    scalar = best(lambda: scalars(k=4, share=0.2, scale=3.0)) - best(
        lambda: inside(k=4, share=0.2, scale=3.0)
    )
    array = best(lambda: earlier_occurrences(rows)) - best(
        lambda: earlier_occurrences.__wrapped__(rows)
    )
    print(f"door-three-scalars-microseconds {scalar * 1e6:.1f} -")
    print(f"door-three-scalars-over-1000-additions {scalar / work:.2f} 5")
    print(f"door-one-array-microseconds {array * 1e6:.1f} -")
