"""Full QK and OV circuits, from tokens and positions in to scores and logits out, as two thin factors; what is large
there, and whether a head copies."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Count, Factored, HeadNames, Natural, must, public, sizes
from circuitkit._heads import Heads
from circuitkit._precision import full_precision
from circuitkit.anatomy import anatomy
from circuitkit.anatomy._heads import MixedHeads
from circuitkit.heads import heads_of

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix


Side = Literal["token", "position"]


@public
@must(
    lambda embed, model: (
        (embed.shape[1], embed.dtype) == ((W := anatomy(model).W_E).shape[1], W.dtype)
        or f"[row, {W.shape[1]}] in {W.dtype}, as the model's W_E"
    )
)
def full_ov(
    model: AnyModel,
    head: HeadNames,
    *,
    embed: Float[Tensor, "row d_model"] | None = None,
    biases: bool = False,
) -> "FactoredMatrix":
    """What attending to a token adds to every logit: $W_E W_V W_O W_U$, `[d_vocab, d_vocab]` (source token, logit).

    **Shapes**: one name or number gives a matrix; a list gives `[head, d_vocab, d_vocab]`. `embed` replaces `W_E`. `biases=True`
    adds `b_V` to every value: one and the same row to all rows. **Neuron-heads** of a converted model have one more row and
    column, the bias token's, last. **Error**: exact up to rounding without norms. With norms fold the gains first, and give
    `embed=model.blocks[layer].ln1(model.W_E)` for what a first layer reads; heads of later layers also read what earlier ones
    wrote. **Source**: "A Mathematical Framework for Transformer Circuits", one-layer models; transposed there.
    """
    from transformer_lens import FactoredMatrix

    stack = anatomy(model)[head]
    left = _rows(model, stack, "token", embed) @ stack.W_V
    if biases and stack.b_V is not None:
        left = left + stack.b_V[:, None, :]
    W_U = tables(model)[2]
    extra = stack.d_model - len(W_U)
    W_U = (
        torch.nn.functional.pad(W_U, (0, extra, 0, extra)) if extra else W_U
    )  # of nothing, a pad would be a copy
    return FactoredMatrix(*_unstacked(head, left, stack.W_O @ W_U))


def _places(query: Side, key: Side, model: Any) -> Any:
    known = "position" not in (query, key) or tables(model)[1] is not None
    return (
        known
        or "'token' on both sides, because this model has no table of positions. Use offset= if they are rotary"
    )


@public
@must(_places)
@must(
    lambda offset, model: (
        offset < (n_ctx := sizes(model)[1]) or f"0 to {n_ctx - 1}, within the model's context"
    )
)
def full_qk(
    model: AnyModel,
    head: HeadNames,
    *,
    query: Side = "token",
    key: Side = "token",
    offset: Natural | None = None,
    biases: bool = False,
) -> "FactoredMatrix":
    r"""The score a destination gives a source: $W_E W_Q W_K^\top W_E^\top / \sqrt{d_{head}}$, row = destination.

    `query` and `key` choose `"token"` ($W_E$) or `"position"` ($W_{pos}$) for either side; where positions are added to the
    stream, the score of token $a$ at $i$ for $b$ at $j$ is the sum of the four tables at $(a,b)$, $(a,j)$, $(i,b)$ and
    $(i,j)$. **Shapes**: `[d_vocab or n_ctx, d_vocab or n_ctx]`; a list of heads gives a leading axis. `biases=True` adds
    `b_Q` and `b_K`: in all but one of summed tables leave them out. **Rotary positions**: `offset` (0 = itself, 1 = previous
    token) is required. **Error**: exact up to rounding without norms (see `full_ov`), also of queries and keys.
    **Source**: "A Mathematical Framework for Transformer Circuits", one-layer models; the scale is written out here.
    """
    from transformer_lens import FactoredMatrix

    stack = anatomy(model)[head]
    if (offset is None) != (stack.turn is None):
        raise ValueError(_HOW_FAR[stack.turn is None].format(offset))
    left, right = (
        _rows(model, stack, query) @ stack.W_Q,
        _rows(model, stack, key) @ stack.W_K,
    )
    if biases and stack.b_Q is not None:
        left = left + stack.b_Q[:, None, :]
    if biases and stack.b_K is not None:
        right = right + stack.b_K[:, None, :]
    if stack.turn is not None:
        left = left @ stack.turn.matrix(offset or 0, stack.d_head).to(left)
    return FactoredMatrix(*_unstacked(head, left / stack.scale, right.mT))


_HOW_FAR = (
    "full_qk got offset={}; expected a number of tokens, because queries and keys are rotated by their positions and no one "
    "table holds for all distances. Write offset=1 for the previous token, offset=0 for the token itself",
    "full_qk got offset={}; expected none: positions are added to the stream (query='position', key='position'). Leave offset out",
)


def tables(model: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    """What tokens and positions put into the stream, and the unembedding."""
    value = anatomy(model)
    return value.embedding, value.W_pos, value.W_U


def _rows(
    model: Any, stack: Heads, side: Side, embed: Tensor | None = None
) -> Float[Tensor, "row d_model"]:
    """What stands on one side of a table, on the coordinates of these heads; neuron-heads see the bias token last."""
    W_E, W_pos, _ = tables(model)
    rows: Any = embed if embed is not None else W_E if side == "token" else W_pos
    return rows if stack.d_model == rows.shape[1] else torch.block_diag(rows, rows.new_ones(1, 1))


def _unstacked(head: Any, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    single = isinstance(head, (str, int))
    return (left[0], right[0]) if single else (left, right)


class TopPerRow(NamedTuple):
    """For every row its largest entries: `values[r, i]` is that at `[r, columns[r, i]]`. **Source**: see `top_per_row`."""

    values: Float[Tensor, "row k"]
    columns: Int[Tensor, "row k"]


@public
@must(
    lambda matrix: (
        matrix.A.ndim == matrix.B.ndim == 2
        or "one matrix without leading axes, as full_ov(model, 'L0H1')"
    )
)
@must(
    lambda k, matrix: (
        k <= (n := matrix.B.shape[1])
        or f"1 to {n}, because there are no more entries in a row. Write a smaller k"
    )
)
def top_per_row(
    matrix: Factored, k: Count = 10, *, largest: bool = True, block: Count = 512
) -> TopPerRow:
    """The `k` largest (or smallest) entries of every row of a `FactoredMatrix`, `block` rows at a time.

    For columns instead of rows give `matrix.T`. **Error**: exact. **Shapes**: `[row, column]` gives `[row, k]`. **Source**: this book.
    """
    left, right = matrix.A, matrix.B
    parts = [
        (left[i : i + block] @ right).topk(k, largest=largest)
        for i in range(0, left.shape[0], block)
    ]
    return TopPerRow(
        torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])
    )


class Copying(NamedTuple):
    """What `copying_score` returns: `score = sum(Re eigenvalues) / sum(|eigenvalues|)`. **Source**: see `copying_score`."""

    score: Float[Tensor, " head"]
    """Sum of the eigenvalues over the sum of their sizes: 1 all positive (copying), -1 all negative."""
    positive_fraction: Float[Tensor, " head"]
    """Share of the eigenvalues (of those not zero up to rounding) with a positive real part."""
    eigenvalues: Complex[Tensor, "head d_head"]
    """The non-trivial eigenvalues, largest size first."""
    names: tuple[str, ...]


def _d_model(model: Any) -> int:
    return tables(model)[0].shape[1]


@public
@must(
    lambda heads_or_model, model: (
        model is None
        or (isinstance(heads_or_model, Heads) and 0 <= heads_or_model.d_model - _d_model(model) < 2)
        or f"Heads first, of its d_model {_d_model(model)}. Write copying_score(heads, model) or copying_score(model)"
    )
)
@must(
    lambda heads_or_model, model: (
        model is None
        or not (
            names := {
                getattr(heads_or_model, "of", ""),
                *(
                    sub.inside.of
                    for sub in anatomy(model).sublayers
                    if isinstance(sub.inside, Heads)
                ),
            }
            - {""}
        )
        or len(names) == 1
        or f"heads of that model and no other, because they write into its stream; not of {' and '.join(map(repr, sorted(names)))}"
    )
)
def copying_score(heads_or_model: Heads | AnyModel, model: AnyModel | None = None) -> Copying:
    r"""$\sum_i \lambda_i / \sum_i |\lambda_i|$ over the eigenvalues of each head's OV circuit.

    `copying_score(model)` and `copying_score(heads, model)` take the full circuit $W_E W_V W_O W_U$: an eigenvector with
    positive $\lambda$ is a mixture of tokens whose logits rise when the head attends to it. `copying_score(heads)` takes $W_V
    W_O$ itself: a direction of the stream that comes back with its own sign. Give the model if you have one: the two agree
    only if $W_U W_E$ is near a multiple of the identity on what the head handles. **Shapes**: one entry per head, from a
    `d_head x d_head` product (the non-zero eigenvalues of $AB$ are those of $BA$). **Error**: exact up to rounding; a head
    that writes nothing scores 0; biases and norms are not part of it. **Source**: "A Mathematical Framework for Transformer
    Circuits", copying and eigenvalues. High copying alone does not make an induction head.

    >>> from circuitkit.circuits import random_heads
    >>> copying_score(random_heads(2, 8, 3)).score.shape
    torch.Size([2])
    """
    stack: Any = heads_or_model
    if not isinstance(stack, Heads):
        stack, model = stack if hasattr(stack, "blocks") else stack.heads, stack
        if isinstance(getattr(stack, "heads", None), MixedHeads):
            # of a converted model: attention heads and neuron-heads, a layer at a time
            return _joined([copying_score(some, model) for some in stack.heads.groups()])
        stack = stack if isinstance(stack, Heads) else heads_of(stack)
    middle = stack.W_O if model is None else stack.W_O @ _unembed_then_embed(model, stack)
    eigenvalues = torch.linalg.eigvals(full_precision(middle @ stack.W_V))
    sizes = eigenvalues.abs()
    order = sizes.argsort(dim=-1, descending=True)
    eigenvalues, sizes = eigenvalues.gather(-1, order), sizes.gather(-1, order)
    total = sizes.sum(-1)
    score = torch.where(
        total > 0, eigenvalues.real.sum(-1) / total.clamp_min(torch.finfo(sizes.dtype).tiny), 0.0
    )
    real = sizes > sizes[:, :1] * stack.d_head * torch.finfo(sizes.dtype).eps
    positive = ((eigenvalues.real > 0) & real).sum(-1).to(sizes.dtype)
    return Copying(score, positive / real.sum(-1).clamp_min(1), eigenvalues, stack.names)


def _unembed_then_embed(model: Any, stack: Heads) -> Float[Tensor, "d_model d_model"]:
    """`W_U @ W_E`: formed once for all heads; neuron-heads have one more coordinate, which no token has."""
    W_E, _, W_U = tables(model)
    extra = stack.d_model - W_E.shape[1]
    return torch.nn.functional.pad((W_U @ W_E).to(stack.W_O), (0, extra, 0, extra))


def _joined(parts: list[Copying]) -> Copying:
    most = max(part.eigenvalues.shape[1] for part in parts)
    eigenvalues = [
        torch.nn.functional.pad(part.eigenvalues, (0, most - part.eigenvalues.shape[1]))
        for part in parts
    ]
    score, positive = (
        torch.cat([getattr(part, name) for part in parts])
        for name in ("score", "positive_fraction")
    )
    return Copying(
        score,
        positive,
        torch.cat(eigenvalues),
        tuple(name for part in parts for name in part.names),
    )
