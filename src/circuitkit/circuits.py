"""QK and OV circuits from weights: what a head looks for, what it writes, how heads compose.

A matrix from tokens to tokens is returned as two thin factors (a `FactoredMatrix`), because a
vocabulary of 50,000 tokens has 2.5 billion pairs.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad
from transformer_lens import FactoredMatrix

from circuitkit.bridge import Model, submodules
from circuitkit.checks import checked, require_at_least, require_bridge, require_finite
from circuitkit.first_use import factor_of, require_unembedding_of_stream
from circuitkit.heads import Heads, in_full_precision, require_scores
from circuitkit.names import Side
from circuitkit.reading import heads_of, model_name, widened
from circuitkit.residual import unembedding_matrix, writer_matrix
from circuitkit.tables import Table

__all__ = [
    "composition_baseline",
    "composition_scores",
    "copying_score",
    "full_ov",
    "full_qk",
    "random_heads",
]

Row = Literal["token", "position"]


# Full circuits: from tokens to scores and logits


@checked
def full_ov(model: Model, head: str | Sequence[str] | Heads) -> FactoredMatrix:
    r"""What attending to a token adds to every logit: $W_E W_V W_O W_U$.

    Parameters
    ----------
    model : a `TransformerBridge`
    head : a name, a list of names, or `Heads` of this model (after a change, for example)

    Returns
    -------
    `[d_vocab, d_vocab]` with source tokens as rows and logits as columns. A list of names, or
    `Heads`, gives `[head, d_vocab, d_vocab]`. Neuron-heads have one more row and column, the last,
    for the bias token.

    Raises
    ------
    ValueError : for heads of another model

    Notes
    -----
    Exact up to rounding in a model without norms; biases are left out. In a model with norms, fold
    their gains into the weights first. Numbers by which a
    configuration multiplies embedding, outputs of layers or logits (Gemma, Granite, Cohere) are
    factors of the result. Heads of later layers also read what earlier ones wrote.
    With a large vocabulary, multiply a few rows at a time: `(table.A[:512] @ table.B).topk(10)`.
    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", one-layer
    models; transposed.

    Examples
    --------
    >>> import circuitkit as ck
    >>> full_ov(ck.load_model("one-layer"), "L0H0").shape
    torch.Size([2048, 2048])
    """
    heads = chosen_heads(model, head)
    W_U = unembedding_matrix(model)
    if heads.d_model == len(W_U) + 1:
        W_U = pad(W_U, (0, 1, 0, 1))  # the bias token raises no logit
    left = input_rows(model, heads, "token") @ heads.W_V  # [head, token, d_head]
    return factored(head, left, written(model, heads) @ W_U)


@checked
def full_qk(
    model: Model,
    head: str | Sequence[str] | Heads,
    *,
    query: Row = "token",
    key: Row = "token",
    offset: int | None = None,
) -> FactoredMatrix:
    r"""The score that a destination gives a source: $W_E W_Q W_K^\top W_E^\top / \sqrt{d_{head}}$.

    Where positions are added to the stream, the score of token $a$ at $i$ for token $b$ at $j$ is
    the sum of four tables: token and token $(a,b)$, token and position $(a,j)$, position and
    token $(i,b)$, position and position $(i,j)$.

    Parameters
    ----------
    model : a `TransformerBridge`
    head : a name, a list of names, or `Heads` of this model
    query, key : `"token"` ($W_E$) or `"position"` ($W_{pos}$) on the side of the destination and
        of the source
    offset : with rotary positions, how many tokens back the source is (0: the token itself)

    Returns
    -------
    `[destination, source]`; a list of names, or `Heads`, gives `[head, destination, source]`

    Raises
    ------
    ValueError : without `offset` if queries and keys are rotated, with it if they are not, and for
        heads of another model

    Notes
    -----
    Exact up to rounding in a model without norms; biases and norms of queries and keys are left
    out (see `full_ov`). The embedding contains the factor of the configuration, as there.
    Source: Elhage et al. 2021, one-layer models; the scale is written out here.

    Examples
    --------
    >>> import circuitkit as ck
    >>> full_qk(ck.load_model("one-layer"), "L0H0", key="position").shape
    torch.Size([2048, 256])
    """
    heads = chosen_heads(model, head)
    require_scores(heads)
    destinations, sources = input_rows(model, heads, query), input_rows(model, heads, key)
    require_offset(heads, offset, model.cfg.n_ctx)
    left = destinations @ heads.W_Q  # [head, destination, d_head]
    right = sources @ heads.W_K  # [head, source, d_head]
    if heads.turn is not None:
        # the source at position 0, and the destination `offset` positions behind it
        left = heads.turn(left, torch.full((left.shape[1],), offset or 0, device=left.device))
        right = heads.turn(right, torch.full((right.shape[1],), 0, device=right.device))
    return factored(head, left / heads.scale, right.mT)


def chosen_heads(model: Model, head: str | Sequence[str] | Heads) -> Heads:
    """The heads of this model that are meant."""
    heads = head if isinstance(head, Heads) else heads_of(model, head)
    require_heads_of_model(heads, model)
    return heads


def require_offset(heads: Heads, offset: int | None, n_ctx: int) -> None:
    """Raise a `ValueError` if a distance is needed and missing, or given and meaningless."""
    if heads.turn is not None and (offset is None or not 0 <= offset < n_ctx):
        raise ValueError(
            f"full_qk was given offset={offset}. These heads rotate queries and keys by position, "
            f"so a table holds for one distance only, from 0 to {n_ctx - 1}. Write offset=1 for the "
            "previous token, or offset=0 for the token itself."
        )
    if heads.turn is None and offset is not None:
        raise ValueError(
            f"full_qk was given offset={offset}, but these heads do not rotate queries and keys: "
            "positions are in the stream. Leave offset out, and write query='position' or "
            "key='position'."
        )


def input_rows(model: Model, heads: Heads, kind: Row) -> Float[Tensor, "row d_model"]:
    """What tokens or positions put into the stream, on the coordinates that these heads read."""
    if kind == "token":
        rows = writer_matrix(model, "embed")
    elif "pos_embed" in submodules(model):
        rows = model.W_pos.detach()[: model.cfg.n_ctx]
    else:
        raise ValueError(
            "This model has no position embedding. Write query='token' and key='token', and "
            "offset=1 if its positions are rotary."
        )
    has_bias_token = heads.d_model == rows.shape[1] + 1
    return torch.block_diag(rows, rows.new_ones(1, 1)) if has_bias_token else rows


def written(model: Model, heads: Heads) -> Float[Tensor, "head d_head d_model"]:
    """`W_O` of heads, times what their model multiplies the output of their layers with."""
    kinds = [
        f"L{math.floor(layer)} {'attn' if layer % 1 == 0 else 'mlp'}" for layer in heads.layers
    ]
    factors = [factor_of(model, kind) for kind in kinds]
    factors = torch.tensor(factors, dtype=heads.W_O.dtype, device=heads.W_O.device)
    return heads.W_O * factors[:, None, None]


def factored(head: str | Sequence[str] | Heads, left: Tensor, right: Tensor) -> FactoredMatrix:
    """Two factors as one matrix; without a leading axis if a single name was asked for."""
    matrix = FactoredMatrix(left, right)
    return matrix[0] if isinstance(head, str) else matrix


# Copying


def copying_score(heads: Any, model: Model | None = None) -> Table:
    r"""Whether heads raise the token that they attend to: $\sum_i \lambda_i / \sum_i |\lambda_i|$.

    The $\lambda_i$ are the eigenvalues of $W_E W_V W_O W_U$, the circuit from tokens to logits, in
    `copying_score(model)` and in `copying_score(heads, model)`. In `copying_score(heads)`, without
    a model, they are those of $W_V W_O$. The score is 1 if all are positive (copying), -1 if all
    are negative, and 0 for a head that writes nothing.

    Parameters
    ----------
    heads : a model, for all its attention heads, or `Heads`
    model : the model of these heads; left out if `heads` is a model

    Raises
    ------
    ValueError : for heads of another model, and for a model and heads in the wrong order

    Notes
    -----
    Exact up to rounding. Biases and all norms are left out, also one behind attention (Gemma 2), so
    fold gains into the weights first. The column *copying in a run* of `induction.scores` is another
    score: from the values in a run, with norms up to their divisors. A high score alone does not make an
    induction head. Source: Elhage et al. 2021, "Copying / primitive induction" and eigenvalues.

    Examples
    --------
    >>> import circuitkit as ck
    >>> round(copying_score(ck.load_model("one-layer"))["L0H0"], 2)
    0.89
    """
    if not isinstance(heads, Heads) and model is not None:
        raise ValueError(
            f"copying_score was given a {type(heads).__name__} and a second argument. Write the "
            "heads first, copying_score(heads_of(model, 'L0H1'), model), or the model alone, "
            "copying_score(model)."
        )
    if not isinstance(heads, Heads):
        heads, model = heads_of(heads), heads
    middle = heads.W_O  # [head, d_head, d_model]
    if model is not None:
        require_heads_of_model(heads, model)
        W_E, W_U = writer_matrix(model, "embed"), unembedding_matrix(model)
        extra = heads.d_model - W_E.shape[1]
        middle = written(model, heads) @ pad((W_U @ W_E).to(middle), (0, extra, 0, extra))
    product = middle @ heads.W_V  # [head, d_head, d_head]
    require_finite(product, "The product of the weights")
    return Table(eigenvalue_score(product), {"head": heads.names}, "copying score")


def eigenvalue_score(products: Float[Tensor, "head d_head d_head"]) -> Float[Tensor, " head"]:
    """The sum of the real parts of all eigenvalues over that of their sizes; 0 if all are 0."""
    eigenvalues = torch.linalg.eigvals(in_full_precision(products))
    size = eigenvalues.abs().sum(-1)
    return eigenvalues.real.sum(-1) / size.clamp_min(torch.finfo(size.dtype).tiny)


def require_heads_of_model(heads: Heads, model: Model) -> None:
    """Raise a `ValueError` if heads cannot be of this model."""
    require_bridge(model)
    require_unembedding_of_stream(model)
    d_model, name = model.W_E.shape[1], model_name(model)
    if heads.d_model not in (d_model, d_model + 1) or heads.of not in ("", name):
        raise ValueError(
            f"These heads (d_model {heads.d_model}, of {heads.of or 'no model'}) do not write into "
            f"the stream of this model (d_model {d_model}, {name}). Give heads_of(model)."
        )


# Composition


@checked
def random_heads(n: int, d_model: int, d_head: int, *, layer: int = 0, seed: int = 0) -> Heads:
    """Heads of independent Gaussian weights with variance $1/d_{model}$, to compare with.

    Parameters
    ----------
    n, d_model, d_head : how many heads, and their sizes
    layer : they are called `L{layer}H0`, `L{layer}H1`, ...
    seed : of the weights

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> random_heads(3, 16, 2).W_Q.shape
    torch.Size([3, 16, 2])
    """
    require_at_least(1, n=n, d_model=d_model, d_head=d_head)
    require_at_least(0, layer=layer)
    generator = torch.Generator().manual_seed(seed)
    shapes = [(n, d_model, d_head)] * 3 + [(n, d_head, d_model)]
    weights = [torch.randn(*shape, generator=generator) / math.sqrt(d_model) for shape in shapes]
    names = tuple(f"L{layer}H{head}" for head in range(n))
    return Heads(names, *weights, layers=(layer,) * n)


@checked
def composition_scores(
    earlier: Any,
    later: Any = None,
    side: Side = "K",
    *,
    above_baseline: bool = False,
) -> Table:
    r"""How strongly later heads read what earlier heads write, from weights alone.

    The score is $\|W_{OV}^e M^l\|_F / (\|W_{OV}^e\|_F \|M^l\|_F)$ with $M^l = W_{QK}$,
    $W_{QK}^\top$ or $W_{OV}$ of the later head for the side Q, K, V. It lies between 0 and 1.

    Parameters
    ----------
    earlier : a model, for all its attention heads, or `Heads`
    later : the same; by default the heads of `earlier` among themselves
    side : the input of the later head: `"Q"`, `"K"` or `"V"`
    above_baseline : subtract `composition_baseline`, the score of random heads of these sizes

    Returns
    -------
    A table `[earlier, later]`: `scores["L0H1", "L1H3"]`. It holds NaN where the first head does
    not lie in an earlier layer than the second.

    Raises
    ------
    ValueError : if no pair is in order, or the heads belong to different models

    Notes
    -----
    Exact up to rounding; half precision is computed in float32. Biases and norms between the two
    heads are left out, one behind attention (Gemma 2) included; `virtual_weights` has them. A high score says that two heads could communicate, not that they do.
    Source: Elhage et al. 2021, two-layer models; there in column vectors and without a baseline.

    Examples
    --------
    >>> import circuitkit as ck
    >>> scores = composition_scores(ck.load_model("two-layer"), side="K", above_baseline=True)
    >>> scores.top(1).names, round(scores["L0H3", "L1H1"], 2)
    (('L0H3, L1H1',), 0.13)
    """
    earlier, later = two_stacks(earlier, later)
    possible = in_order(earlier, later)
    writes, reads = written_rows(earlier), read_columns(later, side)
    sizes = writes.norm(dim=(1, 2))[:, None] * reads.norm(dim=(1, 2))  # [earlier, later]
    products = product_norms(writes, reads, possible)
    # the products of a head of zeros are zero
    scores = products / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)
    title = f"{side}-composition"
    if above_baseline:
        scores = scores - composition_baseline(earlier, later)
        title = f"{title} above that of random heads"
    scores = scores.masked_fill(~possible, torch.nan)
    return Table(scores, {"earlier": earlier.names, "later": later.names}, title)


def product_norms(
    writes: Float[Tensor, "earlier d_write d_model"],
    reads: Float[Tensor, "later d_model d_read"],
    possible: Bool[Tensor, "earlier later"],
) -> Float[Tensor, "earlier later"]:
    """The Frobenius norms of `writes[i] @ reads[j]` for all possible pairs; 0 for the others.

    One earlier head at a time, so that 384 heads of a large model need no more memory than their
    weights do.
    """
    norms = torch.zeros(possible.shape, dtype=writes.dtype, device=writes.device)
    chosen, columns_before = reads[:0], torch.zeros_like(possible[0])
    for row, columns in enumerate(possible):
        if not torch.equal(columns, columns_before):
            chosen, columns_before = reads[columns], columns  # copied once for each layer
        products = writes[row] @ chosen  # [later, d_head, d_head]
        norms[row, columns] = products.norm(dim=(1, 2))
    return norms


def written_rows(heads: Heads) -> Float[Tensor, "head d_head d_model"]:
    """`R W_O` where `R` is the triangle of `W_V`: products with it are as long as with `W_OV`."""
    triangle = torch.linalg.qr(in_full_precision(heads.W_V), mode="r").R
    return triangle @ in_full_precision(heads.W_O)


def read_columns(heads: Heads, side: Side) -> Float[Tensor, "head d_model d_head"]:
    """What heads read through one input, times the triangle of the matrix behind it."""
    behind = {"Q": heads.W_K, "K": heads.W_Q, "V": heads.W_O.mT}[side]
    triangle = torch.linalg.qr(in_full_precision(behind), mode="r").R
    return in_full_precision(getattr(heads, f"W_{side}")) @ triangle.mT


def composition_baseline(earlier: Any, later: Any = None) -> float:
    r"""The composition score that unrelated heads of these sizes have.

    Parameters
    ----------
    earlier, later : see `composition_scores`

    Returns
    -------
    The mean score of all pairs of two stacks of `random_heads`, 12 by 12 wide heads up to 64 by 64
    narrow ones

    Notes
    -----
    It is close to $1/\sqrt{d_{model}}$, the root mean square of the score of a head whose output is
    rotated at random. Source: this book.

    Examples
    --------
    >>> import circuitkit as ck
    >>> round(composition_baseline(ck.load_model("two-layer")), 3)
    0.079
    """
    earlier, later = two_stacks(earlier, later)
    return random_composition(earlier.d_model, earlier.d_head, later.d_head)


@cache
def random_composition(d_model: int, d_earlier: int, d_later: int) -> float:
    """The mean composition score of random heads of these sizes."""
    n = min(64, max(12, 512 // max(d_earlier, d_later)))
    earlier = random_heads(n, d_model, d_earlier)
    later = random_heads(n, d_model, d_later, layer=1, seed=1)
    return composition_scores(earlier, later).values.double().mean().item()


def two_stacks(earlier: Any, later: Any) -> tuple[Heads, Heads]:
    """Two stacks of heads of one dtype that share a stream, from heads or models."""
    earlier = earlier if isinstance(earlier, Heads) else heads_of(earlier)
    if later is None:
        return earlier, earlier
    if isinstance(later, str):
        raise TypeError(
            f"The second argument is the later heads, not {later!r}. Write side={later!r} for the "
            "input of the later head."
        )
    later = later if isinstance(later, Heads) else heads_of(later)
    # neuron-heads have one coordinate more, for the bias token
    if earlier.d_model == later.d_model + 1:
        later = widened(later)
    elif later.d_model == earlier.d_model + 1:
        earlier = widened(earlier)
    require_one_stream(earlier, later)
    dtype = torch.promote_types(earlier.W_Q.dtype, later.W_Q.dtype)
    return earlier.to(dtype), later.to(dtype)


def require_one_stream(earlier: Heads, later: Heads) -> None:
    """Raise a `ValueError` for heads of different models."""
    if earlier.d_model != later.d_model:
        raise ValueError(
            f"The earlier heads write to a stream of {earlier.d_model} dimensions and the later "
            f"heads read one of {later.d_model}. Give heads of one model."
        )
    if earlier.of and later.of and earlier.of != later.of:
        raise ValueError(
            f"These heads belong to different models, {earlier.of} and {later.of}, which share no "
            "stream. Give heads of one model."
        )


def in_order(earlier: Heads, later: Heads) -> Bool[Tensor, "earlier later"]:
    """True where a head of `earlier` lies in a lower layer; an error if none does."""
    first = torch.tensor(earlier.layers, device=earlier.W_Q.device)
    second = torch.tensor(later.layers, device=earlier.W_Q.device)
    possible = first[:, None] < second
    if not possible.any():
        layers = [sorted(set(heads.layers)) for heads in (earlier, later)]
        raise ValueError(
            f"The earlier heads lie in the layers {layers[0]} and the later heads in the layers "
            f"{layers[1]}. A head reads only what lower layers wrote. Swap the two arguments, or set "
            "the layers of hand-made heads with dataclasses.replace(heads, layers=(1,) * len(heads))."
        )
    return possible
