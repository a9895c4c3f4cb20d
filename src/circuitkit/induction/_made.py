"""A small model with an induction head, trained in seconds on repeated random tokens, with its scores at every step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from circuitkit._contract import (
    Count,
    Fraction,
    LearningRate,
    Natural,
    Seed,
    Several,
    must,
    public,
)
from circuitkit._heads import Heads
from circuitkit._work import progress
from circuitkit.anatomy import from_heads
from circuitkit.anatomy import to_bridge as as_bridge
from circuitkit.induction._stream import after_occurrences, earlier_occurrences

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def task_rows(
    d_vocab: int, n_pos: int, batch: int, periods: tuple[int, int], generator: torch.Generator
) -> Int[Tensor, "batch pos"]:
    """Rows that repeat a random span without equal tokens, each with its own random period in the given range.

    With one fixed period a single head could look a fixed number of positions back; equal tokens within a span would leave
    two right answers. Equal random numbers keep their order, so every processor draws the same rows.
    """
    spans = torch.rand(batch, d_vocab, generator=generator).argsort(dim=1, stable=True)
    period = torch.randint(periods[0], periods[1] + 1, (batch, 1), generator=generator)
    return spans.gather(1, torch.arange(n_pos) % period)


class Net(nn.Module):
    """`d_content` dimensions that heads write, beside `d_pos` fixed position dimensions that only Q and K read.

    In float64: a few hundred steps turn a difference in the last bit of float32 into one in the second digit.
    """

    def __init__(
        self,
        n_layers: int,
        d_vocab: int,
        W_pos: Tensor,
        d_content: int,
        n_heads: int,
        d_head: int,
        seed: int,
    ):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        normal = lambda *shape, std: nn.Parameter(
            torch.randn(*shape, generator=g, dtype=torch.float64) * std
        )
        self.n_heads, self.W_pos, width = n_heads, W_pos, n_heads * d_head
        self.W_E = normal(d_vocab, d_content, std=1.0)
        self.W_U = normal(d_content, d_vocab, std=0.02)
        self.layers = nn.ModuleList()
        for _ in range(n_layers):
            W_Q, W_K = (normal(d_content + W_pos.shape[1], width, std=0.09) for _ in range(2))
            W_V, W_O = normal(d_content, width, std=0.09), normal(width, d_content, std=0.06)
            self.layers.append(nn.ParameterList([W_Q, W_K, W_V, W_O]))

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        x, patterns, (batch, n_pos), content = self.W_E[tokens], [], tokens.shape, self.W_E.shape[1]
        future = torch.full((n_pos, n_pos), -math.inf, dtype=x.dtype).triu(1)
        split = lambda y: y.view(batch, n_pos, self.n_heads, -1).transpose(1, 2)  # noqa: E731
        for W_Q, W_K, W_V, W_O in self.weights():
            q, k = (split(x @ W[:content] + self.W_pos[:n_pos] @ W[content:]) for W in (W_Q, W_K))
            v = split(x @ W_V)
            scores = torch.baddbmm(
                future, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=1 / math.sqrt(q.shape[-1])
            )
            patterns.append(scores.softmax(-1).unflatten(0, (batch, -1)))
            x = x + (patterns[-1] @ v).transpose(1, 2).reshape(batch, n_pos, -1) @ W_O
        return x @ self.W_U, patterns

    def weights(self) -> Iterator[Iterator[Tensor]]:
        """`W_Q, W_K, W_V, W_O` of each layer, heads side by side."""
        return (layer.parameters() for layer in self.layers)


def sinusoids(
    n_ctx: int, d_pos: int, amplitude: float = 2.0, slowest: float = 50.0
) -> Float[Tensor, "pos d_pos"]:
    """Fixed positions: cosines and sines of d_pos / 2 frequencies, geometric from 1.6 to 1.6 / slowest."""
    frequency = 1.6 * slowest ** (
        -torch.arange(d_pos // 2, dtype=torch.float64) / max(d_pos // 2 - 1, 1)
    )
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] * frequency
    return amplitude * torch.cat([angle.cos(), angle.sin()], dim=1)


@public
@dataclass(frozen=True, eq=False)
class Training:
    """A finished training run; curves have one entry for each step, measured on that step's fresh batch. **Source**: see `train`."""

    model: "TransformerBridge"
    """The trained model, attention-only, without norms and biases."""
    names: tuple[str, ...]
    """Names of its heads, the columns of the two score curves."""
    loss: Float[Tensor, " step"]
    """Mean loss in nats on the tokens that the row so far determines."""
    accuracy: Float[Tensor, " step"]
    """Share of those tokens that are predicted right."""
    previous_token: Float[Tensor, "step head"]
    """Mean attention on the previous position."""
    prefix_matching: Float[Tensor, "step head"]
    """Mean attention on the positions after earlier occurrences of the current token."""
    checkpoints: "dict[int, TransformerBridge]"
    """The model after as many steps as the key says."""

    def onset(self, accuracy: Fraction = 0.5) -> int | None:
        """First step whose accuracy reaches this, or `None`."""
        reached = (self.accuracy >= accuracy).nonzero()
        return int(reached[0]) if len(reached) else None


@public
@must(lambda n_ctx: n_ctx >= 8 or "an integer of at least 8, because a span is a quarter of it")
@must(
    lambda d_vocab, n_ctx: (
        d_vocab >= n_ctx // 2
        or f"an integer of at least {n_ctx // 2}, because a span has no token twice"
    )
)
@must(
    lambda d_pos: (
        d_pos % 2 == 0
        or f"an even number, because positions are pairs of a cosine and a sine. Write d_pos={d_pos + 1}"
    )
)
@must(
    lambda checkpoints, steps: (
        max(checkpoints, default=0) <= steps
        or f"steps from 0 to {steps}, because training ends there"
    )
)
def train(
    n_layers: Count = 2,
    *,
    n_heads: Count = 1,
    d_vocab: Count = 64,
    n_ctx: Count = 48,
    d_content: Count = 64,
    d_head: Count = 32,
    d_pos: Several = 16,
    batch: Count = 64,
    steps: Count = 300,
    lr: LearningRate = 5e-3,
    seed: Seed = 0,
    checkpoints: Sequence[Natural] = (),
) -> Training:
    """Train an attention-only model to continue repeated random tokens.

    Rows repeat a random span of `n_ctx / 4` to `n_ctx / 2` different tokens; only tokens that the row so far determines are scored.
    Positions are fixed sinusoids that queries and keys read and nothing writes. `checkpoints` are the steps after which a copy is
    kept. AdamW, warm-up over 20 steps, linear decay over the last 30 %, gradients clipped at norm 1. **Shapes**: the model has
    `d_content + d_pos` stream dimensions and `n_heads` heads of `d_head` in each layer. **Error**: equal seeds give equal runs on
    one machine; float64, because training amplifies rounding. **Source**: the task of "In-context Learning and Induction Heads".

    >>> run = train(1, steps=2, d_vocab=8, n_ctx=8, batch=4)
    >>> run.names, run.loss.shape
    (('L0H0',), torch.Size([2]))
    """
    net = Net(n_layers, d_vocab, sinusoids(n_ctx, d_pos), d_content, n_heads, d_head, seed)
    optimiser = torch.optim.AdamW(net.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed + 1)
    kept, curves = ({0: to_bridge(net)} if 0 in checkpoints else {}), []
    for step in progress(range(steps), "training", steps):
        rate = lr * min(1.0, (step + 1) / 20, (steps - step) / (0.3 * steps))
        for group in optimiser.param_groups:
            group["lr"] = rate
        rows = task_rows(d_vocab, n_ctx, batch, (n_ctx // 4, n_ctx // 2), generator)
        loss, curve = _measure(net, rows)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        curves.append(curve)
        if step + 1 in checkpoints:
            kept[step + 1] = to_bridge(net)
    loss, accuracy, previous, prefix = (torch.stack(column) for column in zip(*curves, strict=True))
    names = tuple(f"L{layer}H{head}" for layer in range(n_layers) for head in range(n_heads))
    return Training(to_bridge(net), names, loss, accuracy, previous, prefix, kept)


def _measure(net: Net, rows: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss to descend, and loss, accuracy and the two scores of every head as plain numbers."""
    seen, following = rows[:, :-1], rows[:, 1:]
    logits, patterns = net(seen)
    known = earlier_occurrences(seen).any(-1)
    nll = nn.functional.cross_entropy(
        logits.flatten(0, 1), following.masked_fill(~known, -100).flatten()
    )
    with torch.no_grad():
        every = torch.cat(patterns, dim=1)
        looks = every.flatten(2) @ after_occurrences(seen).to(every).flatten(1)[..., None]
        prefix = looks.sum((0, 2)) / known.sum()
        previous = every.diagonal(-1, -2, -1).mean((0, 2))
        accuracy = (logits.argmax(-1) == following)[known].double().mean()
    return nll, (nll.detach(), accuracy, previous, prefix)


def to_bridge(net: Net) -> "TransformerBridge":
    """The same function as a `TransformerBridge`, content before position in the stream; the weights are copied."""
    (d_content, d_pos), pad = (net.W_E.shape[1], net.W_pos.shape[1]), nn.functional.pad
    split = lambda W: W.detach().unflatten(1, (net.n_heads, -1)).transpose(0, 1)  # noqa: E731
    parts: list[tuple[Tensor, ...]] = []
    for W_Q, W_K, W_V, W_O in net.weights():
        W_O = pad(W_O.detach().unflatten(0, (net.n_heads, -1)), (0, d_pos))
        parts.append((split(W_Q), split(W_K), pad(split(W_V), (0, 0, 0, d_pos)), W_O))
    layers = tuple(layer for layer in range(len(parts)) for _ in range(net.n_heads))
    heads = Heads(
        tuple(map(str, range(len(layers)))),
        *map(torch.cat, zip(*parts, strict=True)),
        layers=layers,
    )
    W_E, W_U = pad(net.W_E.detach(), (0, d_pos)), pad(net.W_U.detach(), (0, 0, 0, d_pos))
    return as_bridge(from_heads(heads, W_E, W_U, pad(net.W_pos, (d_content, 0))))
