"""Training the original models of the skip-trigram task, many seeds at once, through count tables."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._heads import Heads
from circuitkit.superposition._block import Recipe, optimise
from circuitkit.superposition._task import SkipTrigramTask, ToyModel
from circuitkit.superposition._train import CountBatch, count_batch, length_penalty, mixed, run_seed

_NAMES = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")


def train_original(
    task: SkipTrigramTask,
    n_heads: int,
    *,
    seeds: int | Sequence[int] = 1,
    d_head: int = 1,
    steps: int = 4000,
    batch: int = 200,
    n_prompts: int = 100_000,
    lr: float = 1e-2,
    cosine: bool = True,
    biases: bool = True,
    price: float = 0.0,
    power: float = 0.6,
    data_seed: int = 0,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] | None = None,
) -> list[ToyModel]:
    """One-layer models of the task, one for each seed: next-token cross-entropy on every position, Adam.

    Embedding and unembedding are the identity and stay so; W and, with `biases`, b_Q, b_K, b_V start Xavier-normal.
    The post's schedule is `steps=100_000, batch=1000, lr=1e-3, cosine=False`. With `price` the loss is larger by
    `price * (sum_h |o_h|^power)^(1 / power)` a row, `o_h` what head `h` writes there: grown from 0 as `t^2` during half the steps.
    **Error**: exact; rows with the same token and the same counts share their logits, so each is computed once, with the
    counts of what followed it.

    **Source**: "Gated Attention Blocks", experiments on toy models, for the task and the start; count tables are
    this book's.
    """
    seeds = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    v, h, d = task.d_vocab, n_heads, d_head
    shapes = {"W_Q": (h, v, d), "W_K": (h, v, d), "W_V": (h, v, d), "W_O": (h, d, v)}
    shapes |= {"b_Q": (h, d), "b_K": (h, d), "b_V": (h, d)}
    p: dict[str, Tensor] = {name: torch.zeros(len(seeds), *shape, dtype=dtype) for name, shape in shapes.items()}
    for run, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(run_seed(seed, 20_000))
        for name in _NAMES if biases else _NAMES[:4]:
            torch.nn.init.xavier_normal_(p[name][run], generator=generator)
    p = {name: value.requires_grad_(biases or name in _NAMES[:4]) for name, value in p.items()}
    recipe = Recipe(
        lr=lr,
        cosine=cosine,
        lr_warmup=0.02 if cosine else 0.0,
        steps=steps,
        batch=batch,
        n_prompts=max(n_prompts, batch),
        alpha=price,
        alpha_warmup=0.5,
    )
    data = [
        _next_tokens(part, v, dtype)
        for part in task.sample(recipe.n_prompts, run_seed(data_seed, 30_000)).split(batch)[:steps]
    ]
    optimise(recipe, p, lambda step: _cross_entropy(p, *data[step % len(data)], recipe.alpha_at(step), power), progress)
    eye, names = torch.eye(v, dtype=dtype), tuple(f"L0H{i}" for i in range(h))
    return [
        ToyModel(Heads(names, *(p[name][run].detach().clone() for name in _NAMES)), task, eye, eye)
        for run in range(len(seeds))
    ]


def _next_tokens(
    tokens: Tensor, d_vocab: int, dtype: torch.dtype
) -> tuple[CountBatch, Float[Tensor, "d_vocab row d_vocab"]]:
    """Distinct rows of all positions but the last, and the share of each next token among all rows."""
    batch = count_batch(tokens[:, :-1], d_vocab, dtype)
    following = torch.zeros(batch.weight.numel(), d_vocab, dtype=dtype)
    ones = torch.ones(len(batch.row), dtype=dtype)
    following.index_put_((batch.row, tokens[:, 1:].reshape(-1)), ones, accumulate=True)
    return batch, (following / len(batch.row)).view(*batch.weight.shape, d_vocab)


def _cross_entropy(p: dict[str, Tensor], batch: CountBatch, following: Tensor, price: float, power: float = 0.6) -> Float[Tensor, "run"]:
    scores, v = _tables(p)
    z = mixed(batch, scores, torch.ones_like(scores), v)
    r, a, n, h, d = z.shape
    out = (z.reshape(r, a * n, h * d) @ p["W_O"].reshape(r, h * d, a)).view(r, a, n, a)
    logits = out + torch.eye(a, dtype=out.dtype)[:, None]  # the residual stream: the row's own token
    loss = (following.sum(-1) * logits.logsumexp(-1)).sum((1, 2)) - (following * logits).sum((1, 2, 3))
    return loss + price * (length_penalty(z, p["W_O"], power) * batch.weight).sum((1, 2)) / batch.n_rows if price else loss


def _tables(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Scores and values of one-hot tokens: the weights themselves plus biases."""
    q, k, v = (p[f"W_{x}"] + p[f"b_{x}"][:, :, None] for x in "QKV")
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), v
