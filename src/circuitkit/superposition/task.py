"""The skip-trigram task: `[source] ... [destination] -> [completion]`."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from circuitkit.checks import checked

IDLE, PENDING, FORCED = 0, 1, 2


@dataclass(frozen=True)
class SkipTrigramTask:
    """Prompts of random tokens, in which a destination that follows an unused source is completed.

    Token 0 is the source, tokens `1 .. T` are the destinations, and `T + 1 .. 2 T` are their
    completions. The last token, `d_vocab - 1`, begins every prompt. The tokens so far determine
    one of three states:

    - 0, idle: the next token is uniform over all tokens, the beginning token included;
    - 1, pending (a source has not been used yet): uniform over all tokens but the source;
    - 2, forced (a destination came while a source was pending): the completion follows, and the
      source is used up.

    A destination after a *used* source is not completed, which no position-free model can learn.

    Parameters
    ----------
    n_trigrams : T, the number of destinations
    n_ctx : length of a prompt, the beginning token included

    Raises
    ------
    ValueError : for less than 1 trigram or less than 4 positions

    Notes
    -----
    Source: "Gated Attention Blocks" (2024), section "Toy Dataset Generation"; Jermyn et al. 2023.

    Examples
    --------
    >>> task = SkipTrigramTask(n_trigrams=3)
    >>> task.states(torch.tensor([[7, 0, 2, 5]])).tolist()
    [[0, 1, 2, 0]]
    """

    n_trigrams: int
    n_ctx: int = 11

    def __post_init__(self) -> None:
        if self.n_trigrams < 1 or self.n_ctx < 4:
            raise ValueError(
                f"A task with {self.n_trigrams} trigrams and {self.n_ctx} positions is not "
                "possible. It needs n_trigrams >= 1, and n_ctx >= 4 for a beginning and one trigram."
            )

    @property
    def d_vocab(self) -> int:
        """Number of tokens."""
        return 2 * self.n_trigrams + 2

    @property
    def source(self) -> int:
        """The source token."""
        return 0

    @property
    def bos(self) -> int:
        """The token that begins every prompt."""
        return self.d_vocab - 1

    @property
    def destinations(self) -> range:
        """The destination tokens, which are also the numbers of the trigrams."""
        return range(1, self.n_trigrams + 1)

    @property
    def completions(self) -> range:
        """The completions, in the order of their destinations."""
        return range(self.n_trigrams + 1, 2 * self.n_trigrams + 1)

    @checked
    def sample(self, n: int, seed: int) -> Int[Tensor, "prompt pos"]:
        """`n` prompts, `[prompt, pos]`, drawn exactly from the task's distribution."""
        generator = torch.Generator().manual_seed(seed)
        v = self.d_vocab
        shape = (self.n_ctx - 1, n)
        draws = torch.randint(v * (v - 1), shape, generator=generator, dtype=torch.int32)
        # Both are uniform, over all tokens and over those but the source. Only one of them is
        # used at each position, so they may come from the same random integer.
        any_token = draws // (v - 1)
        no_source = 1 + draws // v
        tokens = [torch.full((n,), self.bos, dtype=torch.int32)]
        pending = torch.zeros(n, dtype=torch.bool)
        forced = torch.zeros(n, dtype=torch.bool)
        for step in range(self.n_ctx - 1):
            token = torch.where(pending, no_source[step], any_token[step])
            token = torch.where(forced, tokens[-1] + self.n_trigrams, token)
            pending = (pending | (token == self.source)) & ~forced
            forced = pending & self.is_destination(token)
            tokens.append(token)
        return torch.stack(tokens, dim=1).long()

    @checked
    def negatives(self, n: int, seed: int) -> Int[Tensor, "prompt pos"]:
        """`n` prompts with at least one destination and no source, so nothing is completed.

        They have the task's own distribution given these two facts.
        """
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.empty(n, self.n_ctx, dtype=torch.long)
        tokens[:, 0] = self.bos
        rows = torch.arange(n)
        while len(rows):
            shape = (len(rows), self.n_ctx - 1)
            draws = torch.randint(1, self.d_vocab, shape, generator=generator)
            tokens[rows, 1:] = draws
            # Nothing is predicted at the last position, so the destination comes before it.
            rows = rows[~self.is_destination(draws[:, :-1]).any(-1)]
        return tokens

    def is_destination(self, tokens: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Where the token is a destination."""
        return (tokens >= 1) & (tokens <= self.n_trigrams)

    @checked
    def states(self, tokens: Int[Tensor, "prompt pos"]) -> Int[Tensor, "prompt pos"]:
        """The state after each token of any prompts: 0 idle, 1 pending, 2 forced.

        Raises
        ------
        ValueError : if a token is not one of the task
        """
        self.require_tokens(tokens)
        states = torch.zeros_like(tokens)
        state = torch.zeros_like(tokens[:, 0])
        for pos in range(tokens.shape[1]):
            token = tokens[:, pos]
            after_idle = torch.where(token == self.source, PENDING, IDLE)
            after_pending = torch.where(self.is_destination(token), FORCED, PENDING)
            # After a forced destination its completion follows, which leaves the state idle.
            after_others = torch.where(state == FORCED, IDLE, after_idle)
            state = torch.where(state == PENDING, after_pending, after_others)
            states[:, pos] = state
        return states

    def require_tokens(self, tokens: Tensor) -> None:
        """Raise a `ValueError` unless these are tokens of the task."""
        if not tokens.numel() or int(tokens.min()) < 0 or int(tokens.max()) >= self.d_vocab:
            between = f"{int(tokens.min())} to {int(tokens.max())}" if tokens.numel() else "none"
            raise ValueError(
                f"A task of {self.n_trigrams} trigrams has the tokens 0 to {self.d_vocab - 1}, and "
                f"these prompts hold {between}. Draw prompts with task.sample(n, seed)."
            )


def task_of(model: Any) -> SkipTrigramTask:
    """The task that a toy model was made for; a `ValueError` for any other model."""
    task = getattr(model, "task", None)
    if not isinstance(task, SkipTrigramTask):
        raise ValueError(
            "This model does not hold a task. Write head_verdict(model, SkipTrigramTask(5)), or "
            "train_gated(record_layer(model, layer, tokens))."
        )
    return task
