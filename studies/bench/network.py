"""Attention-only models in plain torch: run them, cut one wire, train them, and store them.

A model is a dictionary of tensors: `W_E`, `W_pos`, `W_U`, and for all heads `W_Q`, `W_K`, `W_V`
`[layer, head, d_model, d_head]`, `W_O` `[layer, head, d_head, d_model]` and the biases `b_Q`, `b_K`,
`b_V` `[layer, head, d_head]`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

N_CTX = 64
Head = tuple[int, int]
"""A layer and the number of a head in it."""
Weights = dict[str, Tensor]


class Sizes(NamedTuple):
    """The sizes of a model; `norm` says whether it has LayerNorm."""

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_vocab: int
    norm: bool = False


class Cut(NamedTuple):
    """Wires that are cut: what `sources` write is replaced by its mean in one input of `to`."""

    sources: tuple[Head, ...]
    to: Head
    side: str


class Run(NamedTuple):
    """What a model computed on rows of tokens; lists have one entry for each layer."""

    logits: Tensor  # [row, pos, d_vocab]
    patterns: list[Tensor]  # [row, head, dst, src]
    streams: list[Tensor]  # what heads read, behind the norm: [row, pos, d_model]
    final_scale: Tensor  # what the last norm divides by; 1 without norms


def normed(x: Tensor, norm: bool) -> Tensor:
    """Apply LayerNorm without gains, if the model has it."""
    return F.layer_norm(x, x.shape[-1:]) if norm else x


def attend(
    weights: Weights, layer: int, x: Tensor, changed: dict[str, tuple[int, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the patterns of one layer, and the mixed values `[row, head, pos, d_head]`.

    Parameters
    ----------
    weights : the model
    layer : its layer
    x : what the heads read, `[row, pos, d_model]`
    changed : for "Q", "K" or "V" a head, and what it reads instead
    """
    parts = {}
    for side in "QKV":
        W, b = weights[f"W_{side}"][layer], weights[f"b_{side}"][layer]
        # one product for all heads is twice as fast as one for each
        flat = x @ W.transpose(0, 1).flatten(1) + b.flatten()
        parts[side] = flat.unflatten(-1, b.shape).transpose(1, 2)
        if side in changed:
            h, other = changed[side]
            parts[side] = parts[side].clone()
            parts[side][:, h] = other @ W[h] + b[h]
    scores = parts["Q"] @ parts["K"].mT / math.sqrt(weights["b_Q"].shape[-1])
    n = scores.shape[-1]
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    pattern = scores.masked_fill(future, -math.inf).softmax(-1)
    return pattern, pattern @ parts["V"]


def run(
    weights: Weights,
    tokens: Tensor,
    norm: bool,
    *,
    cut: Cut | None = None,
    without: tuple[Head, ...] = (),
) -> Run:
    """Run a model, perhaps with wires into one input cut or without the outputs of some heads."""
    x = weights["W_E"][tokens] + weights["W_pos"][: tokens.shape[1]]
    patterns, streams, removed = [], [], torch.zeros(())
    for layer in range(len(weights["W_Q"])):
        streams.append(normed(x, norm))
        changed = {}
        if cut is not None and cut.to[0] == layer:
            changed[cut.side] = (cut.to[1], normed(x - removed, norm))
        pattern, z = attend(weights, layer, streams[-1], changed)
        patterns.append(pattern)
        W_O = weights["W_O"][layer]
        for source in () if cut is None else cut.sources:
            if source[0] == layer:
                h = source[1]
                output = z[:, h] @ W_O[h]
                removed = removed + output - output.mean((0, 1))
        present = [h for h in range(len(W_O)) if (layer, h) not in without]
        x = x + z[:, present].transpose(1, 2).flatten(2) @ W_O[present].flatten(0, 1)
    scale = x.std(-1, correction=0).mean() if norm else torch.ones(())
    return Run(normed(x, norm) @ weights["W_U"], patterns, streams, scale)


def heads_of(weights: Weights) -> list[Head]:
    """List all heads of a model."""
    n_layers, n_heads = weights["W_Q"].shape[:2]
    return [(layer, h) for layer in range(n_layers) for h in range(n_heads)]


def random_weights(sizes: Sizes, generator: torch.Generator, scale: float = 1.0) -> Weights:
    """Draw a model whose scores have about the standard deviation `scale`.

    At `scale=1` a head writes a vector of about a third of the length of an embedding, if it
    attends to one token.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    n_layers, n_heads, d_model, d_head, d_vocab, norm = sizes
    length = math.sqrt(d_model) if norm else 1.5  # of what a head reads
    qk = math.sqrt(scale) / length
    ov = math.sqrt(0.4 * math.sqrt(scale) / (math.sqrt(d_model * d_head) * length))
    shape = (n_layers, n_heads, d_model, d_head)
    return {
        "W_E": normal(d_vocab, d_model) / math.sqrt(d_model),
        "W_pos": normal(N_CTX, d_model) / math.sqrt(d_model),
        "W_U": normal(d_model, d_vocab) * math.sqrt(scale / d_model),
        "W_Q": normal(*shape) * qk,
        "W_K": normal(*shape) * qk,
        "W_V": normal(*shape) * ov,
        "W_O": normal(n_layers, n_heads, d_head, d_model) * ov,
        **{f"b_{side}": torch.zeros(n_layers, n_heads, d_head) for side in "QKV"},
    }


def train(
    weights: Weights,
    norm: bool,
    rows: Callable[[int], Tensor],
    n_steps: int,
    rate: float = 3e-3,
) -> Weights:
    """Train a model with Adam to predict the next token of random rows.

    Parameters
    ----------
    weights : the model to start from
    norm : whether the model has LayerNorm
    rows : draws a number of rows
    n_steps : number of steps, each with 32 rows
    rate : the learning rate, after 50 steps; in the last half it goes down to 0
    """
    weights = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=rate, betas=(0.9, 0.98))
    for step in range(n_steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50, 2 * (1 - step / n_steps))
        tokens = rows(32)
        logits = run(weights, tokens, norm).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in weights.items()}


def rounded(weights: Weights) -> Weights:
    """Round a model to half precision, in which it is stored."""
    return {name: tensor.half().float() for name, tensor in weights.items()}


def bridge_state(weights: Weights, norm: bool) -> dict[str, Tensor]:
    """Return the weights under the names and in the shapes of a native transformer-lens bridge."""
    d_model, d_vocab = weights["W_U"].shape
    state = {
        "embed.weight": weights["W_E"],
        "pos_embed.weight": weights["W_pos"],
        "unembed.weight": weights["W_U"].T,
        "unembed.bias": torch.zeros(d_vocab),
    }
    for layer in range(len(weights["W_Q"])):
        block = f"blocks.{layer}"
        for side in "QKV":
            W = weights[f"W_{side}"][layer]  # [head, d_model, d_head]
            state[f"{block}.attn.{side.lower()}.weight"] = W.mT.flatten(0, 1)
            state[f"{block}.attn.{side.lower()}.bias"] = weights[f"b_{side}"][layer].flatten()
        state[f"{block}.attn.o.weight"] = weights["W_O"][layer].flatten(0, 1).T
        state[f"{block}.attn.o.bias"] = torch.zeros(d_model)
        if norm:
            state[f"{block}.ln1.weight"] = torch.ones(d_model)
            state[f"{block}.ln1.bias"] = torch.zeros(d_model)
    if norm:
        state["ln_final.weight"] = torch.ones(d_model)
        state["ln_final.bias"] = torch.zeros(d_model)
    return {name: tensor.half().contiguous() for name, tensor in state.items()}
