"""A small model that learns to continue repeated tokens, for chapter 3."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from circuitkit.bridge import Model
from circuitkit.checks import checked, require_at_least
from circuitkit.handmade import bridge_of
from circuitkit.heads import Heads
from circuitkit.rows import after_occurrences, earlier_occurrences
from circuitkit.training import fit

__all__ = ["InductionTraining", "train_induction_model"]

D_CONTENT = 64
"""Stream dimensions that heads read and write."""
D_POSITION = 16
"""Stream dimensions that hold the position, which queries and keys read and nothing writes."""
D_HEAD = 32


@dataclass(frozen=True, eq=False)
class InductionTraining:
    """A finished training run. Curves have one entry for each step, from the batch of that step.

    Parameters
    ----------
    model : the trained `TransformerBridge`, attention-only, without norms and biases
    names : names of its heads, the columns of the last two curves
    loss : mean loss in nats on the tokens that the row determines `[step]`
    accuracy : the share of these tokens that are predicted `[step]`
    previous_token : mean attention to the previous position `[step, head]`
    prefix_matching : mean attention to positions after earlier occurrences `[step, head]`

    Notes
    -----
    Source: see `train_induction_model`.
    """

    model: Model
    names: tuple[str, ...]
    loss: Float[Tensor, " step"]
    accuracy: Float[Tensor, " step"]
    previous_token: Float[Tensor, "step head"]
    prefix_matching: Float[Tensor, "step head"]

    def onset(self, accuracy: float = 0.5) -> int | None:
        """Return the first step with at least this accuracy, or None if there is none."""
        reached = (self.accuracy >= accuracy).nonzero()
        return int(reached[0]) if len(reached) else None


@checked
def train_induction_model(
    n_layers: int = 2,
    *,
    n_heads: int = 1,
    d_vocab: int = 64,
    n_ctx: int = 48,
    batch: int = 64,
    steps: int = 300,
    learning_rate: float = 5e-3,
    seed: int = 0,
) -> InductionTraining:
    """Train an attention-only model to continue repeated random tokens.

    Each row repeats a random span of `n_ctx / 4` to `n_ctx / 2` different tokens. Only tokens that
    the row so far determines are scored. Positions are fixed sinusoids, which queries and keys read
    and nothing writes. AdamW trains with a warm-up over 20 steps, a linear decay over the last 30%
    of steps, and gradients clipped at norm 1.

    Parameters
    ----------
    n_layers, n_heads : number of layers, and of heads in each layer
    d_vocab, n_ctx : numbers of tokens and of positions
    batch, steps, learning_rate : of the training
    seed : of the initial weights; the rows are drawn with `seed + 1`

    Returns
    -------
    An `InductionTraining` with the model and its curves.

    Raises
    ------
    ValueError : if the context is too short for a span, or the vocabulary too small for one

    Notes
    -----
    Error: equal seeds give equal runs on one machine. Training is in float64, because it amplifies
    rounding. Source: the task of Olsson et al. 2022, "In-context Learning and Induction Heads".

    Examples
    --------
    >>> training = train_induction_model(1, steps=2, d_vocab=8, n_ctx=8, batch=4)
    >>> training.names, training.loss.shape
    (('L0H0',), torch.Size([2]))
    """
    require_at_least(1, n_layers=n_layers, n_heads=n_heads, batch=batch)
    if n_ctx < 8 or d_vocab < n_ctx // 2:
        raise ValueError(
            f"n_ctx={n_ctx} and d_vocab={d_vocab} do not fit: n_ctx must be at least 8, and d_vocab "
            "at least n_ctx / 2, because a span has no token twice."
        )
    net = InductionNet(n_layers, n_heads, d_vocab, n_ctx, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    curves = []

    def loss_of_new_rows(step: int) -> Tensor:
        rows = task_rows(d_vocab, n_ctx, batch, (n_ctx // 4, n_ctx // 2), generator)
        loss, measures = loss_and_measures(net, rows)
        curves.append(measures)
        return loss

    def rate(step: int) -> float:
        return learning_rate * min(1.0, (step + 1) / 20, (steps - step) / (0.3 * steps))

    adamw = functools.partial(torch.optim.AdamW, betas=(0.9, 0.98), weight_decay=0.01)
    losses = fit(
        net.parameters(),
        loss_of_new_rows,
        steps,
        learning_rate=rate,
        optimizer=adamw,
        clip_norm=1.0,
    )
    names = tuple(f"L{layer}H{head}" for layer in range(n_layers) for head in range(n_heads))
    measures = [torch.stack(column) for column in zip(*curves, strict=True)]
    return InductionTraining(net.to_bridge(), names, losses, *measures)


def task_rows(
    d_vocab: int, n_pos: int, batch: int, periods: tuple[int, int], generator: torch.Generator
) -> Int[Tensor, "batch pos"]:
    """Draw rows that repeat a span of different tokens, each with its own random period.

    If the period were fixed, one head could attend a fixed number of positions back; if a token
    could come twice in a span, it would have two right continuations.
    """
    # equal random numbers keep their order, so every processor draws the same rows
    spans = torch.rand(batch, d_vocab, generator=generator).argsort(dim=1, stable=True)
    period = torch.randint(periods[0], periods[1] + 1, (batch, 1), generator=generator)
    return spans.gather(1, torch.arange(n_pos) % period)


def loss_and_measures(net: "InductionNet", rows: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute the loss, and accuracy, previous token and prefix matching of every head."""
    seen, following = rows[:, :-1], rows[:, 1:]
    logits, patterns = net(seen)
    is_determined = earlier_occurrences(seen).any(-1)
    targets = following.masked_fill(~is_determined, -100)  # cross_entropy leaves out -100
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    with torch.no_grad():
        after = after_occurrences(seen).to(patterns)
        prefix_matching = torch.einsum("bhds,bds->h", patterns, after) / is_determined.sum()
        previous_token = patterns.diagonal(-1, -2, -1).mean((0, 2))
        accuracy = (logits.argmax(-1) == following)[is_determined].double().mean()
    return loss, (accuracy, previous_token, prefix_matching)


class InductionNet(nn.Module):
    """Attention layers without norms and biases, in float64, whose positions only Q and K read."""

    def __init__(self, n_layers: int, n_heads: int, d_vocab: int, n_ctx: int, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, std: float) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64) * std

        def by_head(columns: Tensor) -> nn.Parameter:  # [d, head * d_head] -> [head, d, d_head]
            return nn.Parameter(columns.unflatten(1, (n_heads, -1)).transpose(0, 1).contiguous())

        width = n_heads * D_HEAD
        self.W_pos = sinusoids(n_ctx, D_POSITION)
        self.W_E = nn.Parameter(normal(d_vocab, D_CONTENT, std=1.0))
        self.W_U = nn.Parameter(normal(D_CONTENT, d_vocab, std=0.02))
        self.layers: Any = nn.ModuleList()
        for _ in range(n_layers):
            W_Q = by_head(normal(D_CONTENT + D_POSITION, width, std=0.09))
            W_K = by_head(normal(D_CONTENT + D_POSITION, width, std=0.09))
            W_V = by_head(normal(D_CONTENT, width, std=0.09))
            W_O = nn.Parameter(normal(width, D_CONTENT, std=0.06).unflatten(0, (n_heads, -1)))
            self.layers.append(nn.ParameterList([W_Q, W_K, W_V, W_O]))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[batch, pos, d_vocab]` and patterns `[batch, head, dst, src]`."""
        n_pos = tokens.shape[1]
        x = self.W_E[tokens]  # [batch, pos, d_content]
        positions = self.W_pos[:n_pos].expand(len(x), -1, -1)
        future = torch.full((n_pos, n_pos), -math.inf, dtype=x.dtype).triu(1)
        patterns = []
        for W_Q, W_K, W_V, W_O in self.layers:
            reads = torch.cat([x, positions], dim=-1)  # [batch, pos, d_model]
            q, k = (torch.einsum("bpm,hmd->bhpd", reads, W) for W in (W_Q, W_K))
            v = torch.einsum("bpc,hcd->bhpd", x, W_V)
            scores = future + q @ k.mT / math.sqrt(D_HEAD)
            patterns.append(scores.softmax(-1))
            x = x + torch.einsum("bhpd,hdc->bpc", patterns[-1] @ v, W_O)
        return x @ self.W_U, torch.cat(patterns, dim=1)

    def to_bridge(self) -> Any:
        """Return the same function as a `TransformerBridge`; the stream is content, then position."""
        pad = nn.functional.pad
        n_heads = len(self.layers[0][0])
        weights = zip(*self.layers, strict=True)
        W_Q, W_K, W_V, W_O = (torch.cat(of_layers).detach() for of_layers in weights)
        layers = tuple(layer for layer in range(len(self.layers)) for _ in range(n_heads))
        heads = Heads(
            tuple(map(str, range(len(layers)))),
            W_Q,
            W_K,
            pad(W_V, (0, 0, 0, D_POSITION)),
            pad(W_O, (0, D_POSITION)),
            layers=layers,
        )
        return bridge_of(
            heads,
            pad(self.W_E.detach(), (0, D_POSITION)),
            pad(self.W_U.detach(), (0, 0, 0, D_POSITION)),
            pad(self.W_pos, (D_CONTENT, 0)),
        )


def sinusoids(n_ctx: int, d_position: int) -> Float[Tensor, "pos d_position"]:
    """Return fixed positions: cosines and sines, with frequencies from 1.6 down to 1.6 / 50."""
    n_frequencies = d_position // 2
    falls = torch.arange(n_frequencies, dtype=torch.float64) / max(n_frequencies - 1, 1)
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] * (1.6 * 50.0**-falls)
    return 2.0 * torch.cat([angle.cos(), angle.sin()], dim=1)
