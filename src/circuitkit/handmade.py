"""Models made by hand: every weight follows from what a head should do with named directions.

A stream is divided into orthogonal subspaces, for example one direction for each token, one for
each position and one for each token that a head has found. A head then reads and writes with the
directions of its subspaces.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources.native import boot

from circuitkit.checks import checked, require_at_least
from circuitkit.heads import Heads, stack

__all__ = ["bridge_of", "build_induction_model"]

GAIN = 20.0
"""The logit of a token to which the last head pays all its attention."""


@checked
def bridge_of(
    heads: Heads,
    W_E: Float[Tensor, "d_vocab_in d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    W_pos: Float[Tensor, "n_ctx d_model"] | None = None,
    n_ctx: int | None = None,
) -> TransformerBridge:
    """An attention-only model of these heads, without norms, as a native `TransformerBridge`.

    Parameters
    ----------
    heads : the heads of all layers; `heads.layers` says which layer each belongs to, and every
        layer from 0 to the last has the same number of heads. In the model the heads of layer l
        are called `L{l}H0`, `L{l}H1`, ... in this order.
    W_E : token embedding, `[d_vocab_in, d_model]`
    W_U : unembedding, `[d_model, d_vocab]`
    W_pos : position embedding, `[n_ctx, d_model]`; zero if left out
    n_ctx : number of positions, by default that of `W_pos`

    Returns
    -------
    The model in eval mode, without gradients. Weights are copies; a `scale` other than
    `sqrt(d_head)` is moved into `W_Q`.

    Raises
    ------
    ValueError : if a native model cannot hold these heads

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> W = torch.ones(2, 8, 3)
    >>> heads = Heads(("L0H0", "L1H0"), W, W, W, W.mT, layers=(0, 1))
    >>> bridge_of(heads, torch.eye(8), torch.eye(8), n_ctx=4).cfg.n_layers
    2
    """
    if n_ctx is None:
        if W_pos is None:
            raise ValueError("bridge_of needs n_ctx, the number of positions, or W_pos.")
        n_ctx = len(W_pos)
    require_at_least(1, n_ctx=n_ctx)
    require_native(heads)
    config = native_config(heads, len(W_E), W_U.shape[1], n_ctx)
    with torch.random.fork_rng(devices=[]):  # boot draws weights, which are overwritten below
        bridge = boot(config, dtype=W_E.dtype)
    state = {name: torch.zeros_like(value) for name, value in bridge.state_dict().items()}
    state["embed.weight"] = W_E
    state["unembed.weight"] = W_U.T
    if W_pos is not None:
        state["pos_embed.weight"] = W_pos[:n_ctx]
    for layer in range(config.n_layers):
        state |= attention_state(heads, layer)
    copies = {name: value.detach().clone().contiguous() for name, value in state.items()}
    bridge.load_state_dict(copies)
    return bridge.eval().requires_grad_(False)


def native_config(heads: Heads, d_vocab: int, d_vocab_out: int, n_ctx: int) -> Any:
    """The configuration of a native model with these heads and nothing else."""
    n_layers = int(max(heads.layers)) + 1
    return TransformerBridgeConfig(
        d_model=heads.d_model,
        d_head=heads.d_head,
        n_layers=n_layers,
        n_heads=len(heads) // n_layers,
        n_ctx=n_ctx,
        d_vocab=d_vocab,
        d_vocab_out=d_vocab_out,
        attn_only=True,
        attention_dir="bidirectional" if heads.mask == "full" else "causal",
        normalization_type=None,
        attn_scores_soft_cap=heads.cap or -1.0,
        act_fn="gelu",
        init_weights=False,
        seed=0,
        architecture="TransformerLensNative",
    )


def attention_state(heads: Heads, layer: int) -> dict[str, Tensor]:
    """The parameters of one native attention layer."""
    rows = [row for row, its_layer in enumerate(heads.layers) if its_layer == layer]
    own = heads[rows]
    state = {f"blocks.{layer}.attn.o.weight": own.W_O.flatten(0, 1).T}
    for side in "QKV":
        # a native model divides scores by sqrt(d_head); what is left of the scale goes to W_Q
        divisor = own.scale / math.sqrt(own.d_head) if side == "Q" else 1.0
        W = getattr(own, f"W_{side}") / divisor  # [head, d_model, d_head]
        state[f"blocks.{layer}.attn.{side.lower()}.weight"] = W.transpose(1, 2).flatten(0, 1)
        bias = getattr(own, f"b_{side}")
        if bias is not None:
            state[f"blocks.{layer}.attn.{side.lower()}.bias"] = (bias / divisor).flatten()
    return state


def require_native(heads: Heads) -> None:
    """Raise a `ValueError` if a native model cannot hold these heads."""
    has_more = heads.turn or heads.window or heads.norm_eps is not None or heads.gain_Q is not None
    if has_more or heads.positions != "absolute" or heads.mask == "self_or_first":
        raise ValueError(
            "bridge_of takes heads that attend by QK alone: without rotation, window, norms of "
            f"queries and keys, and with the mask 'causal' or 'full' (it is {heads.mask!r})."
        )
    counts = [heads.layers.count(layer) for layer in range(int(max(heads.layers, default=-1)) + 1)]
    if not counts or len(set(counts)) > 1:
        raise ValueError(
            f"The layers 0, 1, ... have {counts} heads. Every layer needs the same number of "
            "heads; fill the smaller layers with heads of zeros."
        )


# Heads that read and write named directions


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
