"""Models that are not trained here: written down by hand, or shipped with the tables of long computations."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch

from circuitkit._contract import Count, Natural, Positive, must, public
from circuitkit._heads import Heads
from circuitkit.models import stored
from circuitkit.superposition._block import GATES, GatedBlock
from circuitkit.superposition._task import SkipTrigramTask, ToyModel
from circuitkit.superposition._train import GatedModel

ATTEND = 30.0
"""Score that stands for "full attention": whatever is not meant gets less than 10 exp(-30), about 1e-12."""


@public
def hand_specified(
    n_heads: Count,
    n_trigrams: Count,
    shared: Sequence[Sequence[Natural]] | None = None,
    gain: Positive = 4.0,
) -> ToyModel:
    """`n_heads` heads of `d_head = 1` that complete more trigrams than heads by adding their outputs.

    Head `h` attends to the source from the destinations it serves and from nothing else, and always writes the same vector:
    `gain` on its own completion, `0.75 gain` on those it shares, `-0.5 gain` on the other heads' own. Trigram `h` (from 0)
    belongs to head `h`, trigram `n_heads + j` to the heads `shared[j]` (default: the pairs in order).

    Proof that a shared trigram needs its heads together: a set of m heads writes `0.75 m gain` on its completion, `(1 - 0.5
    (m - 1)) gain` on each member's own, at most `0.75 (m - 1) gain` on another shared one; the first is largest for m >= 2.
    One head alone writes more on its own completion. **Source**: "Gated Attention Blocks", introduction and appendix D; the
    numbers are ours.
    """
    task = SkipTrigramTask(n_trigrams)
    n_shared = max(n_trigrams - n_heads, 0)
    if shared is None:
        pairs = [
            pair for last in range(1, n_heads) for pair in ((first, last) for first in range(last))
        ]
        if n_shared > len(pairs):
            most = f"{n_heads} have a head of their own and {len(pairs)} pairs can share one each"
            raise ValueError(
                f"{n_trigrams} trigrams on {n_heads} heads: {most}. Use more heads, or two_head_model."
            )
        shared = pairs[:n_shared]
    sets = [frozenset(group) for group in shared]
    problems = [
        f"shared has {len(sets)} groups for {n_shared} trigrams without a head of their own"
    ] * (len(sets) != n_shared)
    problems += [
        f"shared group {sorted(s)} needs two or more heads below {n_heads}"
        for s in sets
        if len(s) < 2 or max(s) >= n_heads
    ]
    problems += [
        f"shared group {sorted(a)} lies inside {sorted(b)}"
        for a, b in combinations(sets, 2)
        if a <= b or b <= a
    ]
    if problems:
        raise ValueError("these shared groups do not work:\n  " + "\n  ".join(problems))

    v = task.d_vocab
    W_Q, W_K, W_V = (torch.zeros(n_heads, v, 1) for _ in range(3))
    W_O = torch.zeros(n_heads, 1, v)
    W_Q[:] = -1.0
    W_K[:, task.source] = ATTEND
    W_V[:, task.source] = 1.0
    own = list(task.completions)[: min(n_heads, n_trigrams)]
    for head in range(n_heads):
        W_O[head, 0, own] = -0.5 * gain
        if head < n_trigrams:
            W_Q[head, task.destinations[head]] = 1.0
            W_O[head, 0, task.completions[head]] = gain
        for trigram, group in enumerate(sets, start=n_heads):
            if head in group:
                W_Q[head, task.destinations[trigram]] = 1.0
                W_O[head, 0, task.completions[trigram]] = 0.75 * gain
    return _one_hot_model(task, W_Q, W_K, W_V, W_O)


@public
def two_head_model(n_trigrams: Count, gain: Positive = 4.0) -> ToyModel:
    """Two heads that complete *any* number of trigrams: one always guesses, the other takes the guess back.

    Head 0 attends from destination `b` to itself and writes `+gain` on its completion. Head 1 does the same with `-gain`, but
    looks at the source, where it reads nothing, if there is one. Without a source the two cancel exactly. `d_head =
    n_trigrams`. **Source**: Conerly, Jermyn and Olah, Circuits Updates of July 2023 (in words).
    """
    task = SkipTrigramTask(n_trigrams)
    v, n = task.d_vocab, n_trigrams
    b, c = list(task.destinations), list(task.completions)
    W_Q, W_K, W_V = (torch.zeros(2, v, n) for _ in range(3))
    W_O = torch.zeros(2, n, v)
    W_Q[:, b] = torch.eye(n)
    W_K[:, b] = ATTEND * torch.eye(n)
    W_K[1, task.source] = 2 * ATTEND
    W_V[:, b] = torch.eye(n)
    W_O[0, :, c] = gain * torch.eye(n)
    W_O[1, :, c] = -gain * torch.eye(n)
    return _one_hot_model(task, W_Q, W_K, W_V, W_O)


@public
def one_head_model(n_trigrams: Count, gain: Positive = 4.0) -> ToyModel:
    """One head and the direct path: the bigram table guesses, the head takes the guess back where no source is.

    The embedding carries the guess, `W_E = I + gain * (b -> completion of b)`; queries and keys are multiplied by its
    inverse, so they read the token alone. A destination attends to the source if there is one, else to itself, where `-gain`
    is written; other tokens look away from destinations and read nothing. `d_head = n_trigrams + 1`. Same logits as
    `two_head_model` to 1e-5. **Source**: this book, after the two-head construction.
    """
    task = SkipTrigramTask(n_trigrams)
    v, n = task.d_vocab, n_trigrams
    b, c = list(task.destinations), list(task.completions)
    other = [token for token in range(v) if token not in b]
    W_Q, W_K, W_V = (torch.zeros(1, v, n + 1) for _ in range(3))
    W_O = torch.zeros(1, n + 1, v)
    W_Q[0, b, :n] = torch.eye(n)
    W_K[0, b, :n] = ATTEND * torch.eye(n)
    W_K[0, task.source, :n] = 2 * ATTEND
    W_Q[0, other, n] = 1.0
    W_K[0, b, n] = -ATTEND
    W_V[0, b, :n] = torch.eye(n)
    W_O[0, :n, c] = -gain * torch.eye(n)
    guess = torch.zeros(v, v)
    guess[b, c] = gain
    undo = torch.eye(v) - guess  # the inverse of I + guess, because guess @ guess = 0
    return _one_hot_model(task, undo @ W_Q, undo @ W_K, undo @ W_V, W_O, W_E=torch.eye(v) + guess)


@public
def blind_model(n_trigrams: Count, gain: Positive = 4.0) -> ToyModel:
    """One head a trigram that never looks at the source: it attends to its destination and writes the completion.

    It completes every trigram, source or no source, and the published check finds nothing wrong with it. **Source**: this book.
    """
    task = SkipTrigramTask(n_trigrams)
    n, b, c = range(n_trigrams), list(task.destinations), list(task.completions)
    W_Q, W_K, W_V, W_O = (torch.zeros(n_trigrams, task.d_vocab, 1) for _ in range(4))
    W_Q[:] = -1.0
    W_Q[n, b], W_K[n, b], W_V[n, b], W_O[n, c] = 1.0, ATTEND, 1.0, gain
    return _one_hot_model(task, W_Q, W_K, W_V, W_O.mT)


def _one_hot_model(task: SkipTrigramTask, W_Q, W_K, W_V, W_O, W_E=None) -> ToyModel:
    eye = torch.eye(task.d_vocab)
    # Scores here are exact products; sqrt(d_head) belongs to trained heads.
    heads = Heads(
        tuple(f"L0H{h}" for h in range(len(W_Q))), W_Q, W_K, W_V, W_O, scale=math.sqrt(1.0)
    )
    return ToyModel(heads, task, eye if W_E is None else W_E, eye)


@public
def load_original(n_heads: Count, n_trigrams: Count, seed: Natural) -> ToyModel:
    """A stored original model of the skip-trigram task, as it was trained from that seed.

    **Source**: `studies/edition-2/study/superposition_originals.py`, which records seeds, steps and hashes in `data/manifest.json`.
    """
    config, known = f"{n_heads}H{n_trigrams}T", stored("superposition", "originals.safetensors")
    configs = sorted({name.split("/")[0] for name in known})
    if config not in configs:
        raise ValueError(
            f"no originals with {n_heads} heads and {n_trigrams} trigrams are stored; stored are {configs}"
        )
    n = known[f"{config}/W_Q"].shape[0]
    if seed >= n:
        raise ValueError(f"original {seed} of {config} is not stored; seeds are 0 to {n - 1}")
    task = SkipTrigramTask(n_trigrams)
    eye = torch.eye(task.d_vocab)
    parts = (
        known[f"{config}/{name}"][seed].clone()
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
    )
    return ToyModel(Heads(tuple(f"L0H{h}" for h in range(n_heads)), *parts), task, eye, eye)


def load_gated() -> GatedModel:
    """The stored gated block of chapter 5: recipe `GATES` on `load_original(4, 5, 13)`, chosen by loss among 8 runs.

    Stored because another processor's rounding finds another, equally good block. **Source**: `studies/edition-2/study/superposition_pack.py`.
    """
    original = load_original(4, 5, 13)
    block = GatedBlock(GATES, 4, original.heads.d_model)
    block.load_state_dict(stored("superposition", "block.safetensors"))
    return GatedModel(block.requires_grad_(False), original)


@public
def load_results(name: str) -> list[dict]:
    """A stored table, one dict a row, numbers as numbers: `originals`, `causes`, `post`, `recipes`, `coherent`,
    `language_model`.

    **Source**: `studies/edition-2/study/superposition_*.py`.
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
    return Rate(
        k,
        n,
        max(0.0, (k + z * z / 2 - half) / (n + z * z)),
        min(1.0, (k + z * z / 2 + half) / (n + z * z)),
    )
