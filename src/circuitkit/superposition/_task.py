"""The OV-incoherent skip-trigram task, `[source] ... [destination] -> [completion]`, and the one-layer model it is set to."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._contract import Draws, Place, Seed, given, must, one_dtype, public, whole
from circuitkit._heads import Heads
from circuitkit.anatomy import from_heads, to_bridge

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


IDLE, PENDING, FORCED = 0, 1, 2


@public
@must(
    lambda d_vocab, n_trigrams: (
        d_vocab is None
        or d_vocab >= 2 * n_trigrams + 2
        or "a destination and a completion for each trigram, one source and one beginning token. Write "
        f"d_vocab={2 * n_trigrams + 2} or more, or n_trigrams={max((d_vocab - 2) // 2, 0)} or fewer"
    )
)
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
        n_ctx: Annotated[
            int, whole(4, why="a prompt needs 4 positions to hold a beginning and one trigram")
        ] = 11,
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
        draws = torch.randint(
            v * (v - 1), (self.n_ctx - 1, n), generator=generator, dtype=torch.int32
        )
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
            state = torch.where(
                state == PENDING, after_pending, torch.where(state == FORCED, IDLE, after_idle)
            )
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
            [[1 - 1 / v, 1 / v, 0.0], [0.0, 1 - t / (v - 1), t / (v - 1)], [1.0, 0.0, 0.0]],
            dtype=torch.float64,
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
        entropy = torch.tensor(
            [math.log(self.d_vocab), math.log(self.d_vocab - 1), 0.0], dtype=torch.float64
        )
        return float((self.state_probabilities[:-1] @ entropy).mean())


@public
@must(
    lambda task, W_E, heads: (
        len(heads) > 0
        and tuple(W_E.shape) == (task.d_vocab, heads.d_model)
        or f"W_E [{task.d_vocab}, {heads.d_model}]: as many tokens as the task's {task.n_trigrams} trigrams have, and the heads' stream"
    )
)
@one_dtype("heads", "W_E", "W_U")
@dataclass(frozen=True, eq=False, repr=False)
class ToyModel:
    """A one-layer attention-only model without positions: `logits = (W_E[tokens] + sum_h head_h(W_E[tokens])) W_U`.

    Calling it gives what `head_verdict` needs: each head's share of the logits and the residual stream's. **Source**: "Gated
    Attention Blocks", experiments on toy models: one layer, one-hot tokens, no positions.
    """

    heads: Heads
    task: SkipTrigramTask
    W_E: Float[Tensor, "d_vocab d_model"]
    W_U: Float[Tensor, "d_model d_vocab"]

    def __repr__(self) -> str:
        return f"ToyModel({len(self.heads)} heads, {self.task.n_trigrams} trigrams, d_head={self.heads.d_head})"

    def run(
        self, tokens: Int[Tensor, "batch pos"]
    ) -> tuple[Float[Tensor, "batch head pos d_vocab"], Float[Tensor, "batch pos d_vocab"]]:
        """`(head_logits, residual_logits)`; their sum over heads plus the residual is the model's logits, exactly."""
        self.task._require(tokens)
        x = self.W_E[tokens]
        return self.heads.results(x) @ self.W_U, x @ self.W_U

    __call__ = run

    def to(self, *args: Place, **kwargs: Any) -> "ToyModel":
        """The same model on another device or in another dtype; arguments as in `torch.Tensor.to`."""
        to: Any = lambda part: part.to(*args, **kwargs)  # noqa: E731
        return ToyModel(to(self.heads), self.task, to(self.W_E), to(self.W_U))

    def logits(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        heads, residual = self.run(tokens)
        return heads.sum(1) + residual

    def bridge(self) -> "TransformerBridge":
        """The same model as a `TransformerBridge`, up to rounding; what native models always have beside it is zero."""
        return to_bridge(from_heads(self.heads, self.W_E, self.W_U), n_ctx=self.task.n_ctx)
