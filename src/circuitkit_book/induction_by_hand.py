"""Induction models made by hand: every weight follows from what a head should do with named directions.

A stream is divided into orthogonal subspaces, for example one direction for each token, one for
each position and one for each token that a head has found. A head then reads and writes with the
directions of its subspaces.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.checks import checked, require_at_least
from circuitkit.handmade import bridge_of
from circuitkit.heads import Heads, stack

__all__ = ["build_induction_model"]

GAIN = 20.0
"""The logit of a token to which the last head pays all its attention."""


def head_of(
    name: str,
    layer: int,
    compares: list[tuple[Float[Tensor, "n d_model"], Float[Tensor, "n d_model"]]],
    copies: tuple[Float[Tensor, "m d_model"], Float[Tensor, "m d_model"]],
    d_head: int,
) -> Heads:
    r"""The head whose score is the sum of $(x_{dst} \cdot q_i) (x_{src} \cdot k_i)$ over all rows.

    `compares` holds pairs of such rows, of queries and of keys, and `copies` what the head reads
    from a source and what it writes in its place, row by row. Each row has a dimension of the head
    for itself. The factor sqrt(d_head) undoes the division of scores by it.
    """
    queries = torch.cat([query for query, _ in compares]) * math.sqrt(d_head)
    keys = torch.cat([key for _, key in compares])
    rows = [pad(part, (0, 0, 0, d_head - len(part))) for part in (queries, keys, *copies)]
    W_Q, W_K, W_V, W_O = (part[None] for part in rows)  # [1, d_head, d_model]
    return Heads((name,), W_Q.mT, W_K.mT, W_V.mT, W_O, layers=(layer,))


@checked
def build_induction_model(
    n_tokens: int,
    n_ctx: int,
    *,
    method: Literal["k-composition", "pointer"] = "k-composition",
    sharpness: float = 40.0,
) -> TransformerBridge:
    r"""Build a two-layer attention-only model that continues repeated tokens.

    The stream has a direction for each token, for each position, for what L0H0 writes, and for the
    output that `W_U` reads. With $\beta$ = `sharpness`:

    * `"k-composition"`: L0H0 attends to the previous position (score $\beta$ there, 0 elsewhere)
      and writes the token there into the subspace *previous*. L1H0 scores $\beta$ where *previous*
      holds the destination's token, and copies the token at that position to the output. At
      position 0, L0H0 can only attend to itself, so L1H0 subtracts $2\beta$ there.
    * `"pointer"` (Q-composition): L0H0 scores $2\beta$ for the same token and $-\beta$ for the same
      position, so that an earlier copy wins, and writes the *position* of this copy into the
      subspace *pointer*. L1H0 attends to the position after it, and copies the token there.

    Parameters
    ----------
    n_tokens : the number of tokens, at least 2
    n_ctx : the number of positions
    method : how the second head finds the position after the earlier copy
    sharpness : the score of the position that a head should attend to, minus that of all others

    Returns
    -------
    A `TransformerBridge` with the heads L0H0 and L1H0, no norms and no biases.

    Raises
    ------
    ValueError : for fewer than 2 tokens or positions, and if `sharpness` is too small for the bound
        below, or too large for float32

    Notes
    -----
    Error: if the token occurred $m \ge 1$ times before, the attention of L1H0 to the positions
    after these occurrences is at least $1 - n e^{-\beta (c - 2\epsilon)}$ with
    $\epsilon = n e^{-\beta}$, $n$ = `n_ctx`, and $c = 1$ for k-composition, $c = 1/m$ for the
    pointer. *Proof*: a softmax with one score at least $\beta$ above the at most $n$ others puts at
    least $1 - n e^{-\beta}$ on it. So layer 0 writes the wanted direction with a weight of at least
    $1 - \epsilon$ (the pointer writes $1/m$ of that for each occurrence) and the others with at
    most $\epsilon$, and the scores of layer 1 differ by at least $\beta (c - 2 \epsilon)$. For
    $\beta = 40$ and $n = 256$ the error is $10^{-15}$. The logit of a token is 20 times the
    attention to it. Without an earlier occurrence L1H0 spreads its attention evenly.

    Source: the exercises of Elhage et al. 2021, "A Mathematical Framework for Transformer
    Circuits", for both methods.

    Examples
    --------
    >>> model = build_induction_model(5, 8)
    >>> model(torch.tensor([[3, 1, 4, 3]])).argmax(-1)[0, -1].item()
    1
    """
    require_at_least(2, n_tokens=n_tokens, n_ctx=n_ctx)
    require_sharp(sharpness, n_ctx)
    if method == "k-composition":
        return induction_by_previous_token(n_tokens, n_ctx, sharpness)
    return induction_by_pointer(n_tokens, n_ctx, sharpness)


def induction_by_previous_token(n_tokens: int, n_ctx: int, sharpness: float) -> TransformerBridge:
    """Build the model in which L0H0 writes the previous token and L1H0 matches it in its keys."""
    sizes = [n_tokens, n_ctx, n_tokens, n_tokens]  # subspaces, with one direction in each row
    token, position, previous, output = torch.eye(sum(sizes)).split(sizes)
    d_head = max(n_ctx, n_tokens + 1)
    one_back = (sharpness * position[1:], position[:-1])
    first = head_of("L0H0", 0, [one_back], (token, previous), d_head)
    same_token = (sharpness * token, previous)
    not_the_first = (-2 * sharpness * position.sum(0, keepdim=True), position[:1])
    second = head_of("L1H0", 1, [same_token, not_the_first], (token, output), d_head)
    return bridge_of(stack(first, second), token, GAIN * output.T, position)


def induction_by_pointer(n_tokens: int, n_ctx: int, sharpness: float) -> TransformerBridge:
    """Build the model in which L0H0 writes the position of an earlier copy, and L1H0 reads it."""
    sizes = [n_tokens, n_ctx, n_ctx, n_tokens]  # subspaces, with one direction in each row
    token, position, pointer, output = torch.eye(sum(sizes)).split(sizes)
    d_head = n_tokens + n_ctx
    same_token = (2 * sharpness * token, token)
    not_itself = (-sharpness * position, position)
    first = head_of("L0H0", 0, [same_token, not_itself], (position, pointer), d_head)
    one_further = (sharpness * pointer[:-1], position[1:])
    second = head_of("L1H0", 1, [one_further], (token, output), d_head)
    return bridge_of(stack(first, second), token, GAIN * output.T, position)


def require_sharp(sharpness: float, n_ctx: int) -> None:
    """Raise a `ValueError` if heads would not attend where their name says."""
    least = math.log(n_ctx) + 3
    if not least <= sharpness <= 1000:
        raise ValueError(
            f"sharpness={sharpness} does not fit n_ctx={n_ctx}: attention to all wrong positions "
            "together is up to n_ctx * exp(-sharpness), and float32 scores above 1000 are too "
            f"coarse. Choose {least:.1f} to 1000."
        )
