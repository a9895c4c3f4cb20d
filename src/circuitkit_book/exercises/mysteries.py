"""Models that are not what they seem: shipped models that are altered when they are loaded, and one by hand."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit import conversion, models
from circuitkit.heads import Heads
from circuitkit_book.superposition_models import toy_model
from circuitkit_book.superposition_task import SkipTrigramTask

LETTERS = ("A", "B", "C", "D", "E", "F", "G", "H")
D_HEAD, N_HEADS = 32, 4
"""Sizes of the models with attention only."""
WRONG_LAYER, WRONG_NEURON = 0, 181
"""The neuron of model G whose input bias is wrong."""

Weights = Mapping[str, Tensor]


def mystery(letter: str) -> Any:
    """Return one of eight models, `"A"` to `"H"`, that are not what they seem.

    A to D have two layers and an altered circuit (chapter 3). E has two layers and F one, with a head that is not what
    it looks like (chapters 1 and 2). G is a converted model with one wrong neuron (chapter 4). H is a toy model with
    three skip-trigrams (chapter 5). In A to F the heads are in another order.

    Raises
    ------
    ValueError : the letter is not one of A to H

    Examples
    --------
    >>> mystery("A").cfg.n_layers
    2

    Source: this book.
    """
    require_letter(letter)
    if letter == "G":
        return one_wrong_neuron()
    if letter == "H":
        return three_trigrams()
    model = models.load_model("one-layer" if letter == "F" else "two-layer")
    weights = {
        name.replace("._original_component", ""): value for name, value in model.named_parameters()
    }
    with torch.no_grad():
        if letter == "B":
            head_weight(weights, 0, "o", 1).zero_()
        if letter == "C":
            head_weight(weights, 1, "o", 3).mul_(-1)
        if letter == "D":
            copy_induction_head(weights)
        if letter == "E":
            write_a_constant(weights)
        if letter == "F":
            pretend_to_copy(weights)
        shuffle_heads(weights, model.cfg.n_layers, 40 + 2 * LETTERS.index(letter))
    return model


def require_letter(letter: str) -> None:
    """Raise an error unless there is a model of this letter."""
    if letter not in LETTERS:
        raise ValueError(f"There is no model {letter!r}. Write one of A to H, such as 'A'.")


def head_weight(weights: Weights, layer: int, kind: str, head: int) -> Tensor:
    """Return the part of a weight that belongs to one head; kinds are q, k, v and o."""
    weight = weights[f"layers.{layer}.attn.{kind}.weight"]
    axis = 1 if kind == "o" else 0
    return weight.narrow(axis, head * D_HEAD, D_HEAD)


def copy_induction_head(weights: Weights) -> None:
    """Make another head of layer 1 a copy of the induction head, so that either is enough."""
    for kind in "qkvo":
        head_weight(weights, 1, kind, 1).copy_(head_weight(weights, 1, kind, 3))


def write_a_constant(weights: Weights) -> None:
    """Make the head that attends to the opening token attend to all tokens alike, and write the same vector as before."""
    model = models.load_model("two-layer")
    _, cache = model.run_with_cache(model.to_tokens("the"))
    value = cache["blocks.1.attn.hook_v"][0, 0, 0]
    for kind in "qkv":
        head_weight(weights, 1, kind, 0).zero_()
        weights[f"layers.1.attn.{kind}.bias"][:D_HEAD].zero_()
    weights["layers.1.attn.v.bias"][:D_HEAD].copy_(value)


def pretend_to_copy(weights: Weights) -> None:
    """Give the head that attends only to the opening token the matrices of the copying head.

    The output bias of the layer writes what the head wrote before.
    """
    model = models.load_model("one-layer")
    _, cache = model.run_with_cache(model.to_tokens("the"))
    z = cache["blocks.0.attn.hook_z"][0, 0]  # [head, d_head]
    W_O, bias = weights["layers.0.attn.o.weight"], weights["layers.0.attn.v.bias"]
    change = z[3] @ W_O[:, 3 * D_HEAD :].T - z[0] @ W_O[:, :D_HEAD].T
    weights["layers.0.attn.o.bias"].add_(change)
    for kind in "vo":
        head_weight(weights, 0, kind, 3).copy_(head_weight(weights, 0, kind, 0))
    bias[3 * D_HEAD :] = bias[:D_HEAD].clone()


def shuffle_heads(weights: Weights, n_layers: int, seed: int) -> None:
    """Put the heads of each layer into a random order."""
    for layer in range(n_layers):
        order = torch.randperm(N_HEADS, generator=Generator().manual_seed(seed + layer))
        for kind in "qkvo":
            weight = weights[f"layers.{layer}.attn.{kind}.weight"]
            axis = 1 if kind == "o" else 0
            weight.copy_(reordered(weight, order, axis))
            if kind != "o":
                bias = weights[f"layers.{layer}.attn.{kind}.bias"]
                bias.copy_(reordered(bias, order, 0))


def reordered(weight: Tensor, order: Tensor, axis: int) -> Tensor:
    """Return a weight with its heads in another order."""
    parts = weight.split(D_HEAD, axis)
    return torch.cat([parts[head] for head in order.tolist()], axis)


def one_wrong_neuron() -> Any:
    """Return the converted model with MLPs, in which one neuron has a wrong input bias."""
    model = conversion.to_attention_only(models.load_model("two-layer-mlp"), heads_per_neuron=5)
    with torch.no_grad():
        model.blocks[WRONG_LAYER].mlp.b_in[WRONG_NEURON] += 2.0
    return model


def three_trigrams() -> Any:
    """Return a toy model with trigram 2 in head 1, trigram 1 in heads 0 and 3 together, and trigram 3 without its source.

    The unembedding lowers the completion of trigram 1 by more than one head raises it.
    """
    task, eye = SkipTrigramTask(n_trigrams=3), torch.eye(8)
    W_Q, W_K, W_V, W_O = torch.zeros(4, 4, 8, 8)
    for head, trigram in ((1, 2), (0, 1), (3, 1)):
        W_Q[head, trigram], W_K[head, 0] = 30 * eye[0], eye[0]
        W_V[head, 0, trigram], W_O[head, trigram] = 1.0, 4 * eye[trigram + 3]
    W_Q[2, 3], W_K[2, 3], W_V[2, 3, 3], W_O[2, 3] = 30 * eye[3], eye[3], 1.0, 4 * eye[6]
    W_U = eye.clone()
    W_U[1, 4] = -5.0
    names = tuple(f"L0H{head}" for head in range(4))
    heads = Heads(names, W_Q, W_K, W_V, W_O, scale=1.0)
    return toy_model(heads, task, eye, W_U)
