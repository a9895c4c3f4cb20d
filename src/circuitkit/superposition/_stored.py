"""Models and tables that ship with the package, results of the long computations; and a rate with its interval."""

import math
from typing import NamedTuple

import torch

from circuitkit._contract import Count, Natural, must, public
from circuitkit._heads import Heads
from circuitkit._stored import stored
from circuitkit.superposition._block import GatedBlock
from circuitkit.superposition._recipe import GATES
from circuitkit.superposition._task import SkipTrigramTask
from circuitkit.superposition._toy import ToyModel
from circuitkit.superposition._train import GatedModel


@public
def load_original(n_heads: Count, n_trigrams: Count, seed: Natural) -> ToyModel:
    """A stored original model of the skip-trigram task, as it was trained from that seed.

    **Source**: `tools/study/superposition_originals.py`, which records seeds, steps and hashes in `data/manifest.json`.
    """
    config, known = f"{n_heads}H{n_trigrams}T", stored("superposition", "originals.safetensors")
    configs = sorted({name.split("/")[0] for name in known})
    if config not in configs:
        raise ValueError(f"no originals with {n_heads} heads and {n_trigrams} trigrams are stored; stored are {configs}")
    n = known[f"{config}/W_Q"].shape[0]
    if seed >= n:
        raise ValueError(f"original {seed} of {config} is not stored; seeds are 0 to {n - 1}")
    task = SkipTrigramTask(n_trigrams)
    eye = torch.eye(task.d_vocab)
    parts = (known[f"{config}/{name}"][seed].clone() for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"))
    return ToyModel(Heads(tuple(f"L0H{h}" for h in range(n_heads)), *parts), task, eye, eye)


def load_gated() -> GatedModel:
    """The stored gated block of chapter 5: recipe `GATES` on `load_original(4, 5, 13)`, chosen by loss among 8 runs.

    Stored because another processor's rounding finds another, equally good block. **Source**: `tools/study/superposition_pack.py`.
    """
    original = load_original(4, 5, 13)
    block = GatedBlock(GATES, 4, original.heads.d_model)
    block.load_state_dict(stored("superposition", "block.safetensors"))
    return GatedModel(block.requires_grad_(False), original)


@public
def load_results(name: str) -> list[dict]:
    """A stored table, one dict a row, numbers as numbers: `originals`, `causes`, `post`, `recipes`, `coherent`,
    `language_model`.

    **Source**: `tools/study/superposition_*.py`.
    """
    return stored("superposition", f"{name}.csv")


class Rate(NamedTuple):
    """`k` of `n`, with a 95 % interval. **Source**: see `rate`."""

    k: int
    n: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.k}/{self.n} = {self.k / self.n:.2f} (95 % interval {self.low:.2f} to {self.high:.2f})"


@public
@must(lambda k, n: k <= n or "0 <= k <= n and n >= 1: a rate of k in n")
def rate(k: Natural, n: Count) -> Rate:
    """The share `k / n` with its Wilson 95 % interval, which is sensible at 0 and at n too.

    `(k + z^2/2 +- z sqrt(k (n - k) / n + z^2/4)) / (n + z^2)` with z = 1.96. **Source**: Wilson 1927.

    >>> print(rate(9, 10))
    9/10 = 0.90 (95 % interval 0.60 to 0.98)
    """
    z = 1.959964
    half = z * math.sqrt(k * (n - k) / n + z * z / 4)
    return Rate(k, n, max(0.0, (k + z * z / 2 - half) / (n + z * z)), min(1.0, (k + z * z / 2 + half) / (n + z * z)))
