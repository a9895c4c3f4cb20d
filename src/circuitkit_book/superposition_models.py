"""Toy models of chapter 5's skip-trigram task: attention-only, one layer, one-hot tokens, no positions.

Each is a transformer-lens `TransformerBridge` with an attribute `task`. Its logits are a sum over
heads, `(W_E[tokens] + sum_h head_h(W_E[tokens])) W_U`, which is what the verdict needs.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.checks import checked
from circuitkit.data import stored
from circuitkit.handmade import bridge_of
from circuitkit.heads import Heads
from circuitkit.superposition import GATES, GatedBlock, with_gated_layer
from circuitkit_book.superposition_task import SkipTrigramTask

__all__ = [
    "blind_model",
    "hand_specified",
    "load_gated",
    "load_original",
    "one_head_model",
    "toy_model",
    "two_head_model",
]

ATTEND = 30.0
"""A score that stands for full attention: other positions get less than 10 exp(-30), about 1e-12."""


# Models from weights


@checked
def toy_model(
    heads: Heads,
    task: SkipTrigramTask,
    W_E: Float[Tensor, "d_vocab d_model"] | None = None,
    W_U: Float[Tensor, "d_model d_vocab"] | None = None,
) -> TransformerBridge:
    """A model of these heads for this task: one layer, no norms, no positions.

    Parameters
    ----------
    heads : heads of one layer
    task : kept as the attribute `task` of the model
    W_E : embedding, `[d_vocab, d_model]`; one-hot by default
    W_U : unembedding, `[d_model, d_vocab]`; the identity by default

    Returns
    -------
    The model, without gradients.

    Raises
    ------
    ValueError : if the embeddings do not have the task's number of tokens

    Notes
    -----
    Source: "Gated Attention Blocks" (2024), experiments on toy models.

    Examples
    --------
    >>> W = torch.ones(1, 8, 2)
    >>> model = toy_model(Heads(("L0H0",), W, W, W, W.mT), SkipTrigramTask(3))
    >>> model(model.task.sample(5, seed=0)).shape
    torch.Size([5, 11, 8])
    """
    W_E = torch.eye(task.d_vocab) if W_E is None else W_E
    W_U = torch.eye(task.d_vocab) if W_U is None else W_U
    if W_E.shape != (task.d_vocab, heads.d_model) or W_U.shape != W_E.T.shape:
        raise ValueError(
            f"A model of {task.n_trigrams} trigrams has {task.d_vocab} tokens, and its heads read "
            f"d_model = {heads.d_model}. W_E is {tuple(W_E.shape)} and W_U is {tuple(W_U.shape)}; "
            f"they must be [{task.d_vocab}, {heads.d_model}] and its transpose."
        )
    model = bridge_of(heads, W_E, W_U, n_ctx=task.n_ctx)
    model.task = task
    return model


# Models made by hand


@checked
def hand_specified(
    n_heads: int,
    n_trigrams: int,
    shared: Sequence[Sequence[int]] | None = None,
    gain: float = 4.0,
) -> TransformerBridge:
    """Heads of `d_head = 1` that complete more trigrams than heads by adding their outputs.

    A head attends to the source from the destinations that it serves, and from nothing else. It
    always writes the same vector: `gain` on the completion of its own trigram, `0.75 gain` on the
    completions that it shares, and `-0.5 gain` on those of the other heads' own trigrams.

    Parameters
    ----------
    n_heads : number of heads; trigram h (from 0) belongs to head h
    n_trigrams : number of trigrams; those from `n_heads` on are shared
    shared : the heads of each shared trigram; by default the pairs (0, 1), (0, 2), (1, 2), ...
    gain : logit that a head writes on its own completion

    Returns
    -------
    A toy model, see `toy_model`.

    Raises
    ------
    ValueError : if the groups do not suffice, or one lies inside another

    Notes
    -----
    A shared trigram needs its heads together. A set of m heads writes `0.75 m gain` on its
    completion, `(1 - 0.5 (m - 1)) gain` on each member's own, and at most `0.75 (m - 1) gain` on
    another shared one. The first is the largest for m >= 2, and for one head it is not.
    Source: "Gated Attention Blocks" (2024), introduction and appendix D; the numbers are ours.
    """
    task = SkipTrigramTask(n_trigrams)
    groups = head_groups(n_heads, n_trigrams, shared)
    own = list(task.completions)[:n_heads]
    W_Q, W_K, W_V = torch.zeros(3, n_heads, task.d_vocab, 1)
    W_O = torch.zeros(n_heads, 1, task.d_vocab)
    W_Q[:] = -1.0
    W_K[:, task.source] = ATTEND
    W_V[:, task.source] = 1.0
    W_O[:, 0, own] = -0.5 * gain
    for head, completion in enumerate(own):
        W_Q[head, task.destinations[head]] = 1.0
        W_O[head, 0, completion] = gain
    for trigram, group in enumerate(groups, start=n_heads):
        for head in group:
            W_Q[head, task.destinations[trigram]] = 1.0
            W_O[head, 0, task.completions[trigram]] = 0.75 * gain
    return one_hot_model(task, W_Q, W_K, W_V, W_O)


def head_groups(
    n_heads: int, n_trigrams: int, shared: Sequence[Sequence[int]] | None
) -> list[set[int]]:
    """The heads of each shared trigram, checked."""
    n_shared = max(n_trigrams - n_heads, 0)
    if shared is None:
        pairs = [(first, last) for last in range(n_heads) for first in range(last)]
        if n_shared > len(pairs):
            raise ValueError(
                f"{n_trigrams} trigrams are too many for {n_heads} heads: {n_heads} have a head of "
                f"their own, and the {len(pairs)} pairs of heads can share one each. Use more "
                "heads, or two_head_model."
            )
        shared = pairs[:n_shared]
    groups = [set(group) for group in shared]
    if len(groups) != n_shared:
        raise ValueError(f"shared has {len(groups)} groups, and {n_shared} trigrams are shared.")
    for group in groups:
        if len(group) < 2 or not group <= set(range(n_heads)):
            raise ValueError(
                f"The shared group {sorted(group)} needs two or more of the heads 0 to "
                f"{n_heads - 1}."
            )
    for first, second in combinations(groups, 2):
        if first <= second or second <= first:
            raise ValueError(
                f"The shared group {sorted(first)} and {sorted(second)} lie one inside the other, "
                "so the heads of the smaller one would complete both trigrams."
            )
    return groups


@checked
def two_head_model(n_trigrams: int, gain: float = 4.0) -> TransformerBridge:
    """Two heads that complete *any* number of trigrams: one always guesses, one takes it back.

    From a destination, head 0 attends to the destination itself and writes `gain` on its
    completion. Head 1 does the same with `-gain`, but it attends to the source, where it reads
    nothing, if there is one. Without a source the two cancel exactly. `d_head` is `n_trigrams`.

    Parameters
    ----------
    n_trigrams : number of trigrams
    gain : logit of the guess

    Returns
    -------
    A toy model, see `toy_model`.

    Notes
    -----
    Source: Conerly, Jermyn and Olah, "Circuits Updates, July 2023" (in words).
    """
    task = SkipTrigramTask(n_trigrams)
    b, c = list(task.destinations), list(task.completions)
    W_Q, W_K, W_V = torch.zeros(3, 2, task.d_vocab, n_trigrams)
    W_O = torch.zeros(2, n_trigrams, task.d_vocab)
    eye = torch.eye(n_trigrams)
    W_Q[:, b] = eye
    W_K[:, b] = ATTEND * eye
    W_K[1, task.source] = 2 * ATTEND
    W_V[:, b] = eye
    W_O[0][:, c] = gain * eye
    W_O[1][:, c] = -gain * eye
    return one_hot_model(task, W_Q, W_K, W_V, W_O)


@checked
def one_head_model(n_trigrams: int, gain: float = 4.0) -> TransformerBridge:
    """One head and the direct path: the embedding guesses, and the head takes the guess back.

    The embedding holds the guess, `W_E = I + gain * (b -> completion of b)`. Queries and keys are
    multiplied by its inverse, so they read the token alone. A destination attends to the source if
    there is one, and otherwise to itself, where the head writes `-gain`. Other tokens attend away
    from destinations, where the head reads nothing. `d_head` is `n_trigrams + 1`.

    Parameters
    ----------
    n_trigrams : number of trigrams
    gain : logit of the guess

    Returns
    -------
    A toy model, see `toy_model`. Its logits are those of `two_head_model`, to 1e-5.

    Notes
    -----
    Source: this book, after the construction with two heads.
    """
    task = SkipTrigramTask(n_trigrams)
    v, n = task.d_vocab, n_trigrams
    b, c = list(task.destinations), list(task.completions)
    not_b = [token for token in range(v) if token not in b]
    W_Q, W_K, W_V = torch.zeros(3, 1, v, n + 1)
    W_O = torch.zeros(1, n + 1, v)
    W_Q[0, b, :n] = torch.eye(n)
    W_K[0, b, :n] = ATTEND * torch.eye(n)
    W_K[0, task.source, :n] = 2 * ATTEND
    W_Q[0, not_b, n] = 1.0
    W_K[0, b, n] = -ATTEND
    W_V[0, b, :n] = torch.eye(n)
    W_O[0, :n, c] = -gain * torch.eye(n)
    guess = torch.zeros(v, v)
    guess[b, c] = gain
    W_E = torch.eye(v) + guess
    inverse = torch.eye(v) - guess  # because guess @ guess = 0
    return one_hot_model(task, inverse @ W_Q, inverse @ W_K, inverse @ W_V, W_O, W_E)


@checked
def blind_model(n_trigrams: int, gain: float = 4.0) -> TransformerBridge:
    """One head for each trigram that never attends to the source, so it always completes.

    The published check finds nothing wrong with this model.

    Parameters
    ----------
    n_trigrams : number of trigrams, and of heads
    gain : logit that a head writes on its completion

    Returns
    -------
    A toy model, see `toy_model`.

    Notes
    -----
    Source: this book.
    """
    task = SkipTrigramTask(n_trigrams)
    W_Q, W_K, W_V, W_O = torch.zeros(4, n_trigrams, task.d_vocab, 1)
    W_Q[:] = -1.0
    for head, (b, c) in enumerate(zip(task.destinations, task.completions, strict=True)):
        W_Q[head, b] = 1.0
        W_K[head, b] = ATTEND
        W_V[head, b] = 1.0
        W_O[head, c] = gain
    return one_hot_model(task, W_Q, W_K, W_V, W_O.mT)


def one_hot_model(
    task: SkipTrigramTask,
    W_Q: Tensor,
    W_K: Tensor,
    W_V: Tensor,
    W_O: Tensor,
    W_E: Tensor | None = None,
) -> TransformerBridge:
    """A toy model of these heads, whose scores are not divided by `sqrt(d_head)`."""
    names = tuple(f"L0H{head}" for head in range(len(W_Q)))
    return toy_model(Heads(names, W_Q, W_K, W_V, W_O, scale=1.0), task, W_E)


# Stored models


@checked
def load_original(n_heads: int, n_trigrams: int, seed: int) -> TransformerBridge:
    """A stored toy model, as it was trained on the skip-trigram task from this seed.

    Parameters
    ----------
    n_heads, n_trigrams : 2 and 3, 3 and 4, or 4 and 5
    seed : which of the models of this size, from 0 on

    Returns
    -------
    A toy model, see `toy_model`.

    Raises
    ------
    ValueError : if no such model is stored

    Notes
    -----
    Source: `studies/edition-2/study/superposition_originals.py`; `manifest.json` of the data has
    its settings.
    """
    weights = stored("superposition", "originals.safetensors")
    size = f"{n_heads}H{n_trigrams}T"
    sizes = sorted({name.split("/")[0] for name in weights})
    if size not in sizes:
        raise ValueError(
            f"No models with {n_heads} heads and {n_trigrams} trigrams are stored. The stored "
            f"sizes are {', '.join(sizes)}."
        )
    n_seeds = len(weights[f"{size}/W_Q"])
    if not 0 <= seed < n_seeds:
        raise ValueError(f"Model {seed} of {size} is not stored; seeds are 0 to {n_seeds - 1}.")
    fields = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
    own = {name: weights[f"{size}/{name}"][seed] for name in fields}
    heads = Heads(tuple(f"L0H{head}" for head in range(n_heads)), **own)
    return toy_model(heads, SkipTrigramTask(n_trigrams))


def load_gated() -> TransformerBridge:
    """The model `load_original(4, 5, 13)` with the stored gated block of chapter 5 as its layer.

    The block was trained by `GATES` and chosen by its loss among 8 runs. It is stored because on
    another processor training finds another, equally good block.

    Returns
    -------
    A toy model, see `toy_model`. `model.blocks[0].attn.gates(model.W_E)` has the gates.

    Notes
    -----
    Source: `studies/edition-2/study/superposition_pack.py`.
    """
    original = load_original(4, 5, seed=13)
    block = GatedBlock(GATES, n_heads=4, d_model=original.cfg.d_model)
    weights = dict(stored("superposition", "block.safetensors"))
    weights["output_scale"] = weights.pop("log_scale").exp()
    block.load_state_dict(weights)
    return with_gated_layer(original, 0, block)
