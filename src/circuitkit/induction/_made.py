"""Small models of our own with induction heads: one whose every weight follows from what it does to named directions, and
one trained in seconds on repeated random tokens, in plain torch, with its scores at every step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from circuitkit._contract import (
    Count,
    Fraction,
    LearningRate,
    Natural,
    Positive,
    Seed,
    Several,
    Vocabulary,
    must,
    public,
)
from circuitkit._heads import Heads, stack
from circuitkit._work import progress
from circuitkit.anatomy import from_heads
from circuitkit.anatomy import to_bridge as as_bridge
from circuitkit.induction._stream import after_occurrences, earlier_occurrences

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


#: A source subspace, a target subspace and the matrix between them, rows for the source.
Action = tuple[str, str, Tensor]


class Spaces:
    """Orthogonal subspaces that share out the residual stream: `Spaces(token=5, position=8).d_model == 13`."""

    def __init__(self, **sizes: int):
        self.sizes = sizes
        ends = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
        self.places = {name: slice(*ends[i : i + 2]) for i, name in enumerate(sizes)}
        self.d_model = ends[-1]

    def directions(self, name: str) -> Float[Tensor, "n d_model"]:
        """The unit vectors that span a subspace, one row each."""
        return torch.eye(self.d_model)[self.places[name]]

    def head(
        self, name: str, layer: int, looks: Sequence[Action], moves: Sequence[Action], d_head: int
    ) -> Heads:
        r"""The head whose score is $\sum q B k^\top$ over `looks` and whose output is $\sum x M$ over `moves`.

        Each look `(query space, key space, B)` reads the destination in one subspace and the source in another; each move
        `(from, to, M)` carries the source's content from one into another. *Proof*: every action gets head dimensions of its
        own, one for each column of $B$ that is not zero, where $W_Q = B$ and $W_K$ is the identity, and one for each row of
        $M$ that is not zero, where $W_V$ is the identity and $W_O = M$. $W_Q$ carries the factor sqrt(d_head) that scores are
        divided by. **Source**: tracr's idea of deriving a matrix from its action.
        """
        W_Q, W_K, W_V = (torch.zeros(self.d_model, d_head) for _ in range(3))
        W_O, used = torch.zeros(d_head, self.d_model), 0
        for query, key, block in looks:
            columns = block.any(0).nonzero()[:, 0]
            room = slice(used, used := used + len(columns))
            W_Q[self.places[query], room] = block[:, columns] * math.sqrt(d_head)
            W_K[self.places[key], room] = torch.eye(self.sizes[key])[:, columns]
        used = 0
        for source, target, block in moves:
            rows = block.any(1).nonzero()[:, 0]
            room = slice(used, used := used + len(rows))
            W_V[self.places[source], room] = torch.eye(self.sizes[source])[:, rows]
            W_O[room, self.places[target]] = block[rows]
        return Heads((name,), W_Q[None], W_K[None], W_V[None], W_O[None], layers=(layer,))


def shift(n: int, by: int) -> Float[Tensor, "n n"]:
    """The matrix that sends direction `j` to direction `j + by`, and to nothing where that is out of range."""
    return torch.eye(n).roll(by, dims=1) * (
        torch.ones(n, n).triu(by) if by >= 0 else torch.ones(n, n).tril(by)
    )


def _sharp(sharpness: float, n_ctx: int) -> Any:
    """Below this the stated bound is empty, so the model would not be what its name says."""
    least = math.log(n_ctx) + 3
    return least <= sharpness <= 1000 or (
        f"{least:.1f} to 1000 for n_ctx={n_ctx}, because attention off its target is up to n_ctx * exp(-sharpness), and float32 "
        "scores above 1000 lose the digits that tell positions apart. The default is 40"
    )


@public
@must(_sharp)
def build_induction_model(
    vocab: Vocabulary,
    n_ctx: Several,
    *,
    method: Literal["k-composition", "pointer"] = "k-composition",
    sharpness: Positive = 40.0,
    gain: Positive = 20.0,
) -> "TransformerBridge":
    r"""A two-layer attention-only model that continues repeated tokens, with heads L0H0 and L1H0 made by hand.

    Stream: one direction for each token, one for each position, one memory that layer 0 writes, one output that `W_U` reads.
    With $\beta$ = `sharpness`:

    * `"k-composition"`. L0H0 looks one position back (score $\beta$ there, 0 elsewhere) and writes the token it finds
      into *previous*. L1H0 scores $\beta$ where *previous* holds the destination's token, and copies the token there.
      At position 0 L0H0 can only look at itself; L1H0 subtracts $2\beta$ there.
    * `"pointer"` (Q-composition). L0H0 scores $2\beta$ for the same token and $-\beta$ for the same position, so an earlier
      copy wins, and writes the *position* it finds into *pointer*. L1H0 looks one after it, and copies the token there.

    **Error**. If the token occurred $m \ge 1$ times before, L1H0's weight on the positions after these occurrences is at
    least $1 - n e^{-\beta (c - 2\epsilon)}$ with $\epsilon = n e^{-\beta}$, $n$ = `n_ctx`, and $c = 1$ for k-composition, $c
    = 1/m$ for the pointer. *Proof*: a softmax with one score at least $\beta$ above the at most $n$ others puts at least $1 -
    n e^{-\beta}$ on it, so layer 0 writes the wanted direction with weight at least $1 - \epsilon$ (the pointer, $1/m$ of
    that for each occurrence) and the others with at most $\epsilon$; scores of layer 1 then differ by at least $\beta (c - 2
    \epsilon)$. For $\beta = 40$ and $n = 256$ it is $10^{-15}$. `gain` times the weight is the logit of a token; without an
    earlier occurrence L1H0 spreads evenly. **Shapes**: `vocab` a number of tokens or the tokens; `d_model` is 3 or 2 `vocab`
    + 1 or 2 `n_ctx`. **Source**: the exercises of "A Mathematical Framework for Transformer Circuits" (both mechanisms).

    >>> model = build_induction_model(5, 8)
    >>> model(torch.tensor([[3, 1, 4, 3]])).argmax(-1)[0, -1].item()
    1
    """
    n_tokens = vocab if isinstance(vocab, int) else len(vocab)
    token, place = torch.eye(n_tokens), torch.eye(n_ctx)
    if method == "k-composition":
        spaces = Spaces(token=n_tokens, position=n_ctx, previous=n_tokens, output=n_tokens)
        d_head = max(n_ctx, n_tokens + 1)
        at_zero = torch.zeros(n_ctx, n_ctx)
        at_zero[:, 0] = -2 * sharpness
        match = [("token", "previous", sharpness * token), ("position", "position", at_zero)]
        first = spaces.head(
            "L0H0", 0, _back(1, n_ctx, sharpness), [("token", "previous", token)], d_head
        )
        second = spaces.head("L1H0", 1, match, [("token", "output", token)], d_head)
    else:
        spaces = Spaces(token=n_tokens, position=n_ctx, pointer=n_ctx, output=n_tokens)
        d_head = n_tokens + n_ctx
        same = [
            ("token", "token", 2 * sharpness * token),
            ("position", "position", -sharpness * place),
        ]
        after = [("pointer", "position", sharpness * shift(n_ctx, 1))]
        first = spaces.head("L0H0", 0, same, [("position", "pointer", place)], d_head)
        second = spaces.head("L1H0", 1, after, [("token", "output", token)], d_head)
    return _model(spaces, stack(first, second), gain)


@public
@must(_sharp)
@must(
    lambda back, n_ctx: (
        sum(back) < n_ctx or "two positive distances whose sum is below n_ctx. Use smaller ones"
    )
)
def build_virtual_head_model(
    vocab: Vocabulary,
    n_ctx: Several,
    *,
    back: tuple[Count, Count] = (1, 2),
    sharpness: Positive = 40.0,
    gain: Positive = 20.0,
) -> "TransformerBridge":
    r"""Two heads that compose through V into one virtual head: the model predicts the token `sum(back)` positions ago.

    L0H0 looks `back[0]` positions back and writes the token there into *carried*; L1H0 looks `back[1]` positions back and moves
    *carried* to the output. The virtual head has the pattern $A^1 A^0$ and the matrix $W_{OV}^0 W_{OV}^1$. **Error**: the weight
    on the wanted token is at least $1 - 2 n e^{-\beta}$ from position `sum(back)` on, by the argument of `build_induction_model`
    twice; before it heads spread evenly. **Source**: the exercises of "A Mathematical Framework for Transformer Circuits".

    >>> model = build_virtual_head_model(5, 8)
    >>> model(torch.tensor([[3, 1, 4, 2, 0]])).argmax(-1)[0, 3:].tolist()
    [3, 1]
    """
    n_tokens = vocab if isinstance(vocab, int) else len(vocab)
    token = torch.eye(n_tokens)
    spaces = Spaces(token=n_tokens, position=n_ctx, carried=n_tokens, output=n_tokens)
    d_head = max(n_ctx, n_tokens)
    first = spaces.head(
        "L0H0", 0, _back(back[0], n_ctx, sharpness), [("token", "carried", token)], d_head
    )
    second = spaces.head(
        "L1H0", 1, _back(back[1], n_ctx, sharpness), [("carried", "output", token)], d_head
    )
    return _model(spaces, stack(first, second), gain)


def _back(by: int, n_ctx: int, sharpness: float) -> list:
    """Look `by` positions back: query position `j` scores `sharpness` on key position `j - by`."""
    return [("position", "position", sharpness * shift(n_ctx, -by))]


def _model(spaces: Spaces, heads, gain: float) -> "TransformerBridge":
    W_U = gain * spaces.directions("output").T
    return as_bridge(
        from_heads(heads, spaces.directions("token"), W_U, spaces.directions("position"))
    )


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
