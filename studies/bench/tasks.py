"""Random rows and tasks: which tokens a model sees, and what it should predict where."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from studies.bench.network import N_CTX, Head, Weights, run


class Task(NamedTuple):
    """Rows, the token that should be predicted at each position, and where this counts."""

    tokens: Tensor  # [row, pos]
    targets: Tensor  # [row, pos]
    counts: Tensor  # [row, pos], bool


def uniform(n: int, d_vocab: int, g: torch.Generator, length: int = N_CTX) -> Tensor:
    """Draw rows of tokens, all equally likely."""
    return torch.randint(d_vocab, (n, length), generator=g)


def distinct(n: int, d_vocab: int, length: int, g: torch.Generator) -> Tensor:
    """Draw rows in which no token occurs twice."""
    return torch.rand(n, d_vocab, generator=g).argsort(1)[:, :length]


def repeat(n: int, d_vocab: int, data: dict, g: torch.Generator) -> Task:
    """Repeat a block of 26 different tokens; the second copy should be predicted."""
    block = distinct(n, d_vocab, 26, g)
    tokens = torch.cat([block, block], 1)
    counts = torch.zeros_like(tokens, dtype=torch.bool)
    counts[:, 27:-1] = True
    return Task(tokens, tokens.roll(-1, 1), counts)


def walk_without_repeats(n_tokens: int, length: int, g: torch.Generator) -> list[int]:
    """Draw a sequence in which no pair of neighbours occurs twice."""
    row, seen = [int(torch.randint(n_tokens, (), generator=g))], set()
    while len(row) < length:
        options = [token for token in range(n_tokens) if (row[-1], token) not in seen]
        if not options:
            return walk_without_repeats(n_tokens, length, g)
        row.append(options[int(torch.randint(len(options), (), generator=g))])
        seen.add((row[-2], row[-1]))
    return row


def two_token_repeat(n: int, d_vocab: int, data: dict, g: torch.Generator) -> Task:
    """Repeat a block of 8 different tokens in which only pairs of neighbours are unique."""
    rows = []
    for _ in range(n):
        names = torch.randperm(d_vocab, generator=g)[:8]
        rows.append(names[walk_without_repeats(8, 28, g)])
    block = torch.stack(rows)
    tokens = torch.cat([block, block], 1)
    counts = torch.zeros_like(tokens, dtype=torch.bool)
    counts[:, 30:-1] = True
    return Task(tokens, tokens.roll(-1, 1), counts)


def skip_trigrams(n: int, d_vocab: int, data: dict, g: torch.Generator) -> Task:
    """Set the source of a skip trigram somewhere, and its destination at the end."""
    special = torch.tensor(data["trigrams"])
    others = torch.tensor([t for t in range(d_vocab) if t not in special])
    tokens = others[uniform(n, len(others), g, 40)]
    choice = special[torch.randint(len(special), (n,), generator=g)]
    place = torch.randint(0, 36, (n,), generator=g)
    tokens[torch.arange(n), place] = choice[:, 0]
    tokens[:, -1] = choice[:, 1]
    counts = torch.zeros_like(tokens, dtype=torch.bool)
    counts[:, -1] = True
    return Task(tokens, choice[:, 2:].expand_as(tokens), counts)


def duplicates(n: int, d_vocab: int, data: dict, g: torch.Generator) -> Task:
    """Repeat different tokens in another order; their partners should be predicted."""
    block = distinct(n, d_vocab, 26, g)
    order = torch.rand(n, 26, generator=g).argsort(1)
    tokens = torch.cat([block, block.gather(1, order)], 1)
    counts = torch.zeros_like(tokens, dtype=torch.bool)
    counts[:, 28:] = True
    return Task(tokens, torch.tensor(data["partner"])[tokens], counts)


def marked(n: int, d_vocab: int, data: dict, g: torch.Generator) -> Task:
    """Set one token with a mark among others; it should be predicted everywhere behind it."""
    others = torch.tensor([t for t in range(d_vocab) if t not in data["marked"]])
    tokens = others[uniform(n, len(others), g, 48)]
    choice = torch.tensor(data["marked"])[torch.randint(len(data["marked"]), (n,), generator=g)]
    place = torch.randint(0, 16, (n,), generator=g)
    tokens[torch.arange(n), place] = choice
    counts = torch.arange(48) > place[:, None]
    return Task(tokens, choice[:, None].expand_as(tokens), counts)


def frequencies(n: int, d_vocab: int, data: dict, g: torch.Generator) -> Task:
    """Draw tokens independently with given log-odds; the next token should be predicted."""
    chances = torch.tensor(data["log_odds"]).softmax(0)
    tokens = chances.multinomial(n * N_CTX, replacement=True, generator=g).reshape(n, N_CTX)
    counts = torch.ones_like(tokens, dtype=torch.bool)
    counts[:, [0, -1]] = False
    return Task(tokens, tokens.roll(-1, 1), counts)


def two_back(n: int, d_vocab: int, data: dict, g: torch.Generator) -> Task:
    """Draw random rows; the token two positions back should be predicted."""
    tokens = uniform(n, d_vocab, g)
    counts = torch.ones_like(tokens, dtype=torch.bool)
    counts[:, :3] = False
    return Task(tokens, tokens.roll(2, 1), counts)


TASKS: dict[str, Callable[[int, int, dict, torch.Generator], Task]] = {
    "repeat": repeat,
    "two-token repeat": two_token_repeat,
    "skip trigrams": skip_trigrams,
    "duplicates": duplicates,
    "marked": marked,
    "frequencies": frequencies,
    "two back": two_back,
}


def scores(
    weights: Weights, norm: bool, task: Task, without: tuple[Head, ...] = (), cut=None
) -> dict[str, float]:
    """Return accuracy, loss in nats and mean probability of the target, on the rows of a task."""
    logits = run(weights, task.tokens, norm, cut=cut, without=without).logits[task.counts]
    targets = task.targets[task.counts]
    log_probs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return {
        "accuracy": (logits.argmax(-1) == targets).float().mean().item(),
        "loss": F.cross_entropy(logits, targets).item(),
        "probability": log_probs.exp().mean().item(),
    }
