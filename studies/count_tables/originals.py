"""Training models of the skip-trigram task by counts of tokens, many seeds side by side."""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit import Heads
from circuitkit.superposition.block import Recipe
from circuitkit.superposition.gated_training import seed_of
from circuitkit.training import fit
from circuitkit_book.superposition_models import toy_model
from circuitkit_book.superposition_task import SkipTrigramTask
from studies.count_tables.tables import CountBatch, Parameters, count_batch, gathered

SMALLEST = 1e-3
"""Lengths of what heads write are rounded up to about this, so that a power of 0 has a gradient."""


def train_originals(
    task: SkipTrigramTask, n_heads: int, d_head: int, recipe: Recipe, *, seeds: int
) -> list[TransformerBridge]:
    """One-layer models, one for each seed: next-token cross-entropy on every position.

    Embedding and unembedding are the identity and stay so. Weights and biases start Xavier-normal.
    The loss of a row is larger by `alpha * (sum_h |o_h|^power)^(1 / power)`, and `o_h` is what head h
    writes there.

    Parameters
    ----------
    task : the prompts
    n_heads, d_head : shape of the layer
    recipe : its learning rate, steps, prompts, `alpha` and `power`; the rest is for gated blocks
    seeds : number of models
    """
    p = initial_weights(task.d_vocab, n_heads, d_head, seeds)
    prompts = task.sample(recipe.n_prompts, seed_of(0, 30_000)).split(recipe.batch)
    data = [next_tokens(part, task.d_vocab) for part in prompts[: recipe.steps]]

    def loss_at(step: int) -> Float[Tensor, " run"]:
        return loss(p, *data[step % len(data)], recipe.alpha_at(step), recipe.power)

    adam = partial(torch.optim.Adam, fused=True)
    fit(p.values(), loss_at, recipe.steps, learning_rate=recipe.lr_at, optimizer=adam)
    names = tuple(f"L0H{head}" for head in range(n_heads))
    return [
        toy_model(Heads(names, **{name: value[run].detach() for name, value in p.items()}), task)
        for run in range(seeds)
    ]


def initial_weights(d_vocab: int, n_heads: int, d_head: int, seeds: int) -> Parameters:
    """Random weights and biases `[run, head, ...]`, each run from its own seed."""
    shapes = {name: (n_heads, d_vocab, d_head) for name in ("W_Q", "W_K", "W_V")}
    shapes |= {"W_O": (n_heads, d_head, d_vocab)}
    shapes |= {name: (n_heads, d_head) for name in ("b_Q", "b_K", "b_V")}
    p = {name: torch.zeros(seeds, *shape) for name, shape in shapes.items()}
    for run in range(seeds):
        generator = torch.Generator().manual_seed(seed_of(run, 20_000))
        for value in p.values():
            torch.nn.init.xavier_normal_(value[run], generator=generator)
    return {name: value.requires_grad_() for name, value in p.items()}


def next_tokens(
    tokens: Tensor, d_vocab: int
) -> tuple[CountBatch, Float[Tensor, "d_vocab row d_vocab"]]:
    """The rows of all positions but the last, and how often each token follows, as a share."""
    batch = count_batch(tokens[:, :-1], d_vocab)
    following = torch.zeros(batch.weight.numel(), d_vocab)
    ones = torch.ones(len(batch.row))
    following.index_put_((batch.row, tokens[:, 1:].flatten()), ones, accumulate=True)
    return batch, (following / len(batch.row)).view(*batch.weight.shape, d_vocab)


def loss(
    p: Parameters, batch: CountBatch, following: Tensor, alpha: float, power: float
) -> Float[Tensor, " run"]:
    """Cross-entropy, plus the penalty on what heads write."""
    q, k, v = (p[f"W_{name}"] + p[f"b_{name}"][:, :, None] for name in "QKV")
    scores = q @ k.mT / q.shape[-1] ** 0.5
    z = gathered(batch.counts, scores, torch.ones_like(scores), v)
    n_tokens = following.shape[-1]
    own_token = torch.eye(n_tokens)[:, None]  # the residual stream
    logits = torch.einsum("ranhd,rhdm->ranm", z, p["W_O"]) + own_token
    entropy = (following.sum(-1) * logits.logsumexp(-1)).sum((1, 2))
    entropy = entropy - (following * logits).sum((1, 2, 3))
    if alpha == 0:
        return entropy
    gram = torch.einsum("rhdm,rhem->rhde", p["W_O"], p["W_O"])
    square = torch.einsum("ranhd,rhde,ranhe->ranh", z, gram, z)
    lengths = (square + SMALLEST**2).sqrt()
    joint = lengths.pow(power).sum(-1).pow(1 / power)
    return entropy + alpha * (joint * batch.weight).sum((1, 2))
