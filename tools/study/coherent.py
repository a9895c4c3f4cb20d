"""The OV-coherent task: the answer at one read-off token depends on a pair of earlier tokens."""

from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class OVCoherentTask:
    """`[signal] ... [signal] ... [read-off] -> [answer]`: prompts that end in the read-off token after two signals.

    Token 0 is the read-off, `1 .. S` are signals, the rest noise. The answer is one of `S (S + 1) / 2` classes, one for
    each unordered pair of signals, a signal twice included: with the 4 signals of the public description these are its
    10 outputs. No head can read the answer from one source, because each signal is part of several pairs.
    **Source**: Greenspan and Wynroe, "An OV-Coherent Toy Model of Attention Head Superposition", as far as its text goes:
    it states 12 input tokens (1 read-off, 4 signals, 7 noise) and 10 outputs. That outputs are unordered pairs, the
    prompt length and uniform places are our reading; no code is public.
    """

    n_signals: int = 4
    n_noise: int = 7
    n_ctx: int = 8

    @property
    def d_vocab(self) -> int:
        return 1 + self.n_signals + self.n_noise

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The unordered pair behind each answer, in the order of the answers."""
        return list(combinations_with_replacement(range(1, self.n_signals + 1), 2))

    def sample(self, n: int, seed: int) -> tuple[Int[Tensor, "prompt pos"], Int[Tensor, "prompt"]]:
        """`(tokens, answers)`: two uniform signals at two distinct uniform places, noise elsewhere, read-off last.

        >>> tokens, answers = OVCoherentTask().sample(3, seed=0)
        >>> tokens.shape, tokens[:, -1].tolist()
        (torch.Size([3, 8]), [0, 0, 0])
        """
        generator, s = torch.Generator().manual_seed(seed), self.n_signals
        tokens = torch.randint(1 + s, self.d_vocab, (n, self.n_ctx), generator=generator)
        tokens[:, -1] = 0
        first = torch.randint(self.n_ctx - 1, (n,), generator=generator)
        step = torch.randint(1, self.n_ctx - 1, (n,), generator=generator)
        places = torch.stack([first, (first + step) % (self.n_ctx - 1)], 1)
        signals = torch.randint(1, 1 + s, (n, 2), generator=generator)
        tokens.scatter_(1, places, signals)
        low, high = signals.sort(1).values.unbind(1)
        # Pairs that begin with 1 come first: S of them, then S - 1, and so on.
        return tokens, (low - 1) * s - (low - 1) * (low - 2) // 2 + high - low
