"""A fixed piece of work, and what others take in its terms.

A page promises seconds on the machine on which it was written. Elsewhere, or beside other work, the clock says something
else about page and reference alike: what is judged is their ratio, measured in the same minute.
"""

import subprocess
import sys
import time

SECONDS = 5.0
"""What the work takes, alone on two cores of the machine on which the promises were written."""
WORK = """
import torch
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
x = torch.randn(512, 512, generator=generator)
for _ in range(900):
    x = torch.tanh(x @ x.T / 512)
small, total = torch.randn(8, 8, generator=generator), 0
for step in range(150_000):
    small = torch.tanh(small @ small)
    total += sum(k * k for k in range(step % 64))
"""


def clock(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def reference() -> float:
    """Seconds that the work takes now: a new process, an import, large products and many small steps."""
    return clock(lambda: subprocess.run([sys.executable, "-W", "ignore", "-c", WORK], check=True))


def in_reference_seconds(work) -> float:
    """Seconds that something would take on the machine of the promises: the reference runs before it and after it."""
    before, taken, after = reference(), clock(work), reference()
    return taken * SECONDS / ((before + after) / 2)
