"""Train the small model of "Born in your tab" in PyTorch, over the share of training rows with repeats.

`python -m studies.birth_over_share` trains 10 models with two layers for each of 21 shares (0%, 5%, ..., 100%) and writes the
step at which the induction head of each forms into `src/circuitkit/data/induction/births.json`. Seed 1000 + the share in percent
starts the ten runs of a share. The model, its rows and its steps are those of `lab_page/training.js`; the random numbers are
PyTorch's own. It takes about five minutes of one core.
"""

import json
import math
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

VOCAB, CONTENT, POSITION, HEAD, CONTEXT, BATCH = 64, 64, 16, 32, 32, 16
STEPS, EVERY, RATE, WARM, FALL = 240, 4, 7e-3, 20, 0.3
SHARES, RUNS = range(0, 101, 5), 10
TARGET = Path(__file__).parents[1] / "src/circuitkit/data/induction/births.json"
Weights = dict[str, Tensor]


def positions(context: int = CONTEXT, width: int = POSITION) -> Tensor:
    """Sines and cosines of the positions, `[pos, width]`, which are not trained."""
    speed = 1.6 * 50 ** (-torch.arange(width // 2).double() / (width // 2 - 1))
    angle = torch.arange(context).double()[:, None] * speed
    return 2 * torch.cat([angle.cos(), angle.sin()], dim=1)


def new_weights(random: torch.Generator, runs: int, layers: int = 2) -> Weights:
    """Weights before the first step, with a leading axis for models that are trained side by side."""
    wide = CONTENT + POSITION
    shapes = {"W_E": (VOCAB, CONTENT, 1.0), "W_U": (CONTENT, VOCAB, 0.02)}
    for layer in range(layers):
        shapes |= {f"{layer}.{name}": (wide, HEAD, 0.09) for name in ("W_Q", "W_K")}
        shapes |= {f"{layer}.W_V": (CONTENT, HEAD, 0.09), f"{layer}.W_O": (HEAD, CONTENT, 0.06)}
    return {
        name: (size * torch.randn(runs, n, m, generator=random)).requires_grad_()
        for name, (n, m, size) in shapes.items()
    }


def forward(weights: Weights, ids: Tensor, *, alone: bool = False) -> tuple[Tensor, list[Tensor]]:
    """Logits `[run, row, pos, vocab]` and the pattern of each layer. `alone`: layer 0 may not look back."""
    x = torch.stack([table[row] for table, row in zip(weights["W_E"], ids, strict=True)])
    context = ids.shape[-1]
    place = positions(context, weights["0.W_Q"].shape[1] - x.shape[-1]).to(x)
    place = place.expand(*x.shape[:-1], -1)
    future = torch.ones(context, context, dtype=torch.bool).triu(1)
    patterns = []
    for layer in range(sum(name.endswith("W_Q") for name in weights)):
        W_Q, W_K, W_V, W_O = (weights[f"{layer}.W_{name}"][:, None] for name in "QKVO")
        read = torch.cat([x, place], dim=-1)
        scores = (read @ W_Q) @ (read @ W_K).transpose(-1, -2) / math.sqrt(W_Q.shape[-1])
        hidden = ~torch.eye(context, dtype=torch.bool) if alone and layer == 0 else future
        patterns.append(scores.masked_fill(hidden, -math.inf).softmax(-1))
        x = x + patterns[-1] @ (x @ W_V) @ W_O
    return x @ weights["W_U"][:, None], patterns


def loss_of(logits: Tensor, ids: Tensor, begin: Tensor) -> Tensor:
    """The mean loss of each run over the positions from `begin` on, `[run]`."""
    counts = torch.arange(logits.shape[-2]) >= begin[..., None]
    right = logits.log_softmax(-1).gather(-1, ids[..., 1:, None]).squeeze(-1)
    return -(right * counts).sum((-1, -2)) / counts.sum((-1, -2))


def new_rows(random: torch.Generator, runs: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens `[run, row, pos]`, the position at which the loss begins, and the period; it is 0 without a repeat."""
    shape = (runs, BATCH)
    tokens = torch.rand(*shape, VOCAB - 1, generator=random).argsort(-1) + 1
    period = torch.randint(CONTEXT // 4, CONTEXT // 2 + 1, shape, generator=random)
    repeats = torch.rand(shape, generator=random) < share
    at = torch.arange(CONTEXT).expand(*shape, -1)
    at = torch.where(repeats[..., None], at % period[..., None], at)
    ids = torch.nn.functional.pad(tokens.gather(-1, at), (1, 0))
    return ids, period + 1, period * repeats


def prefix_matching(pattern: Tensor, begin: Tensor, period: Tensor) -> Tensor:
    """The mean attention of each run from a token that came before to the tokens after its earlier occurrences."""
    at = torch.arange(pattern.shape[-1])  # position 0 is the start token, which never recurs
    behind = at[:, None] - at + 1  # how far before a destination the token before a source is
    wanted = (behind > 0) & (at > 1) & (behind % period[..., None, None].clamp_min(1) == 0)
    counts = at >= begin[..., None]
    found = (pattern * (wanted & counts[..., None])).sum((-1, -2, -3))
    return found / counts.sum((-1, -2))


def rate_at(step: int) -> float:
    return RATE * min(1, (step + 1) / WARM, (STEPS - step) / (FALL * STEPS))


def clip(weights: Weights) -> None:
    """Shorten the gradient of each run to length 1, if it is longer."""
    square = sum(weight.grad.square().sum((-1, -2), keepdim=True) for weight in weights.values())
    for weight in weights.values():
        weight.grad *= (1 / (square.sqrt() + 1e-6)).clamp_max(1)


def births(share: float, seed: int, runs: int = RUNS) -> list[int | None]:
    """The first measured step at which prefix matching in the last layer is at least 50%, for each run; None: never."""
    random = torch.Generator().manual_seed(seed)
    weights = new_weights(random, runs)
    held_out = new_rows(random, runs, share=1.0)
    adam = partial(torch.optim.AdamW, betas=(0.9, 0.98), weight_decay=0.01)
    descent = adam(list(weights.values()), lr=RATE)
    found: list[int | None] = [None] * runs
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                _, patterns = forward(weights, held_out[0][..., :-1])
                scores = prefix_matching(patterns[-1], *held_out[1:])
            for run, score in enumerate(scores.tolist()):
                if found[run] is None and score >= 0.5:
                    found[run] = step
        if step == STEPS:
            return found
        ids, begin, _ = new_rows(random, runs, share)
        descent.param_groups[0]["lr"] = rate_at(step)
        descent.zero_grad()
        loss_of(forward(weights, ids[..., :-1])[0], ids, begin).sum().backward()
        clip(weights)
        descent.step()
    raise AssertionError("the last step returns")


def main() -> None:
    torch.set_num_threads(1)
    table = {}
    for percent in SHARES:
        table[percent] = births(percent / 100, seed=1000 + percent)
        print(f"{percent}%: {table[percent]}", flush=True)
    lines = (f'  "{percent}": {json.dumps(found)}' for percent, found in table.items())
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
