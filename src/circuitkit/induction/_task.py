"""The repeated-token task and the small model that learns it: plain torch, so that a step costs milliseconds."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


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
        self, n_layers: int, d_vocab: int, W_pos: Tensor, d_content: int, n_heads: int, d_head: int, seed: int
    ):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        normal = lambda *shape, std: nn.Parameter(torch.randn(*shape, generator=g, dtype=torch.float64) * std)  # noqa: E731
        self.n_heads, self.W_pos, width = n_heads, W_pos, n_heads * d_head
        self.W_E = normal(d_vocab, d_content, std=1.0)
        self.W_U = normal(d_content, d_vocab, std=0.02)
        self.layers = nn.ModuleList()
        for _ in range(n_layers):
            W_Q, W_K = (normal(d_content + W_pos.shape[1], width, std=0.09) for _ in range(2))
            W_V, W_O = normal(d_content, width, std=0.09), normal(width, d_content, std=0.06)
            self.layers.append(nn.ParameterList([W_Q, W_K, W_V, W_O]))

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        x, patterns, (batch, n_pos) = self.W_E[tokens], [], tokens.shape
        positions = self.W_pos[:n_pos].expand(batch, -1, -1)
        future = torch.ones(n_pos, n_pos, dtype=torch.bool).triu(1)
        split = lambda y: y.view(batch, n_pos, self.n_heads, -1).transpose(1, 2)  # noqa: E731
        for W_Q, W_K, W_V, W_O in self.weights():
            stream = torch.cat([x, positions], -1)
            q, k, v = split(stream @ W_Q), split(stream @ W_K), split(x @ W_V)
            scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(future, -math.inf)
            patterns.append(scores.softmax(-1))
            x = x + (patterns[-1] @ v).transpose(1, 2).reshape(batch, n_pos, -1) @ W_O
        return x @ self.W_U, patterns

    def weights(self) -> Iterator[Iterator[Tensor]]:
        """`W_Q, W_K, W_V, W_O` of each layer, heads side by side."""
        return (layer.parameters() for layer in self.layers)


def sinusoids(n_ctx: int, d_pos: int, amplitude: float = 2.0, slowest: float = 50.0) -> Float[Tensor, "pos d_pos"]:
    """Fixed positions: cosines and sines of d_pos / 2 frequencies, geometric from 1.6 to 1.6 / slowest."""
    frequency = 1.6 * slowest ** (-torch.arange(d_pos // 2, dtype=torch.float64) / max(d_pos // 2 - 1, 1))
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] * frequency
    return amplitude * torch.cat([angle.cos(), angle.sin()], dim=1)
