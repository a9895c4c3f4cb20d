"""The OV-incoherent skip-trigram task: `[source] ... [destination] -> [completion]`, one source for all trigrams."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._contract import Draws, Seed, given, must, public, whole

IDLE, PENDING, FORCED = 0, 1, 2


@public
@must(lambda d_vocab, n_trigrams: d_vocab is None or d_vocab >= 2 * n_trigrams + 2
     or "a destination and a completion for each trigram, one source and one beginning token. Write "
     f"d_vocab={2 * n_trigrams + 2} or more, or n_trigrams={max((d_vocab - 2) // 2, 0)} or fewer")
@dataclass(frozen=True, init=False)
class SkipTrigramTask:
    """Prompts of random tokens in which a destination that follows an unused source is completed at once.

    Token 0 is the source, `1 .. T` the destinations, `T+1 .. 2T` their completions, `d_vocab - 1` begins every prompt. The
    tokens so far determine one of three states:

    - idle: the next token is uniform over all tokens (the beginning token included);
    - pending (a source was drawn and not used): uniform over all tokens but the source;
    - forced (a destination came while pending): the completion follows, and the source is used up.

    A destination after a *used* source is not completed, which no position-free model can know. **Source**: "Gated Attention
    Blocks", section "Toy Dataset Generation"; Jermyn et al., May 2023.
    """

    n_trigrams: int
    n_ctx: int
    """Prompt length, the beginning token included."""
    d_vocab: int
    """Number of tokens; `2 * n_trigrams + 2` if left out. More tokens are fillers."""

    def __init__(
        self,
        n_trigrams: Annotated[int, whole(1, 10_000)],
        n_ctx: Annotated[int, whole(4, why="a prompt needs 4 positions to hold a beginning and one trigram")] = 11,
        d_vocab: Annotated[int, whole(4, 40_000)] | None = None,
    ) -> None:
        d_vocab = 2 * n_trigrams + 2 if d_vocab is None else d_vocab
        vars(self).update(n_trigrams=n_trigrams, n_ctx=n_ctx, d_vocab=d_vocab)

    @property
    def source(self) -> int:
        return 0

    @property
    def bos(self) -> int:
        return self.d_vocab - 1

    @property
    def destinations(self) -> range:
        return range(1, self.n_trigrams + 1)

    @property
    def completions(self) -> range:
        return range(self.n_trigrams + 1, 2 * self.n_trigrams + 1)

    def sample(self, n: Draws, seed: Seed) -> Int[Tensor, "prompt pos"]:
        """`n` prompts, `[prompt, pos]`. One random number a token serves both kinds of draw, exactly uniform.

        An integer `x` below `V (V - 1)` gives `x // (V - 1)`, uniform over all tokens, and `1 + x // V`, over those but the source.
        """
        generator, v = torch.Generator().manual_seed(seed), self.d_vocab
        draws = torch.randint(v * (v - 1), (self.n_ctx - 1, n), generator=generator, dtype=torch.int32)
        free, without_source = (draws // (v - 1)).unbind(0), (1 + draws // v).unbind(0)
        rows = [torch.full((n,), self.bos, dtype=torch.int32)]
        pending = torch.zeros(n, dtype=torch.bool)
        forced = torch.zeros(n, dtype=torch.bool)
        for step in range(self.n_ctx - 1):
            token = torch.where(pending, without_source[step], free[step])
            token = torch.where(forced, rows[-1] + self.n_trigrams, token)
            pending = (pending | (token == self.source)) & ~forced
            forced = pending & (token >= 1) & (token <= self.n_trigrams)
            rows.append(token)
        return torch.stack(rows, dim=1).long()

    def negatives(self, n: Draws, seed: Seed) -> Int[Tensor, "prompt pos"]:
        """`n` prompts without any source and with at least one destination: nothing is to be completed anywhere.

        The task's own distribution given these two facts, drawn by redrawing prompts without a destination.
        """
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.empty(n, self.n_ctx, dtype=torch.long)
        tokens[:, 0] = self.bos
        todo = torch.arange(n)
        while len(todo):
            drawn = torch.randint(1, self.d_vocab, (len(todo), self.n_ctx - 1), generator=generator)
            tokens[todo, 1:] = drawn
            # The last position asks for a token nobody sees, so the destination has to come before it.
            todo = todo[~self.is_destination(drawn[:, :-1]).any(-1)]
        return tokens

    def is_destination(self, tokens: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return (tokens >= 1) & (tokens <= self.n_trigrams)

    def states(self, tokens: Int[Tensor, "prompt pos"]) -> Int[Tensor, "prompt pos"]:
        """The state after each token (0 idle, 1 pending, 2 forced), for any prompts; see the class docstring."""
        self._require(tokens)
        out = torch.zeros_like(tokens)
        state = torch.zeros_like(tokens[:, 0])
        for pos in range(tokens.shape[1]):
            token = tokens[:, pos]
            after_idle = torch.where(token == self.source, PENDING, IDLE)
            after_pending = torch.where(self.is_destination(token), FORCED, PENDING)
            state = torch.where(state == PENDING, after_pending, torch.where(state == FORCED, IDLE, after_idle))
            out[:, pos] = state
        return out

    def _require(self, tokens: Int[Tensor, "prompt pos"], name: str = "tokens") -> None:
        """A `ValueError` unless these are prompts over the task's tokens."""
        if not tokens.numel() or not 0 <= int(tokens.min()) <= int(tokens.max()) < self.d_vocab:
            raise ValueError(
                f"got {given(name, tokens)}; expected [prompt, pos] with tokens 0 to {self.d_vocab - 1}, as the task of "
                f"{self.n_trigrams} trigrams has. Draw them with task.sample(n, seed)."
            )

    @cached_property
    def state_probabilities(self) -> Float[Tensor, "pos state"]:
        """Exact probability of each state after each position, float64, from the three-state Markov chain."""
        v, t = self.d_vocab, self.n_trigrams
        step = torch.tensor(
            [[1 - 1 / v, 1 / v, 0.0], [0.0, 1 - t / (v - 1), t / (v - 1)], [1.0, 0.0, 0.0]], dtype=torch.float64
        )
        rows = [torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)]
        for _ in range(self.n_ctx - 1):
            rows.append(rows[-1] @ step)
        return torch.stack(rows)

    @property
    def bayes_loss(self) -> float:
        """The least next-token cross-entropy any model can reach, in nats, mean over all predicted positions; exact.

        `mean_t ( P(idle at t) ln V + P(pending at t) ln (V - 1) + P(forced at t) * 0 )`.

        >>> round(SkipTrigramTask(3).bayes_loss, 2)
        1.92
        """
        entropy = torch.tensor([math.log(self.d_vocab), math.log(self.d_vocab - 1), 0.0], dtype=torch.float64)
        return float((self.state_probabilities[:-1] @ entropy).mean())
