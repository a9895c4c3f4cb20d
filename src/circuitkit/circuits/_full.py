"""Full QK and OV circuits: from tokens and positions in, to scores and logits out, as two thin factors."""

from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import HasWeights, HeadNames, Natural, must, public
from circuitkit._heads import Heads, heads
from circuitkit.circuits._rotary import rotation

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix

Side = Literal["token", "position"]


@public
@must(lambda embed, model: (embed.shape[1], embed.dtype) == (model.W_E.shape[1], model.W_E.dtype)
     or f"[row, {model.W_E.shape[1]}] in {model.W_E.dtype}, as the model's W_E")
def full_ov(
    model: HasWeights,
    head: HeadNames,
    *,
    embed: Float[Tensor, "row d_model"] | None = None,
    biases: bool = False,
) -> "FactoredMatrix":
    r"""What attending to a token adds to every logit: $W_E W_V W_O W_U$, `[d_vocab, d_vocab]` (source token, logit).

    **Shapes**: one name or number gives a matrix; a list gives `[head, d_vocab, d_vocab]`. `embed` replaces `W_E`.
    **Biases**: `biases=True` adds `b_V` to every value, which adds one and the same row to all rows; the layer's
    output bias and `b_U` belong to no head and are never in it.
    **Error**: exact up to rounding for a model without norms. With norms the head and the unembedding read rescaled
    vectors: fold the gains first, and give `embed=model.blocks[layer].ln1(model.W_E)` for what a first layer reads.
    Heads of later layers also read what earlier ones wrote; this is their part that comes straight from the token.
    **Source**: "A Mathematical Framework for Transformer Circuits", one-layer models; transposed there.
    """
    from transformer_lens import FactoredMatrix

    stack = heads(model)[head]
    rows = _embedding(model, "token", stack) if embed is None else with_bias_row(embed, stack)
    left = rows @ stack.W_V
    if biases and stack.b_V is not None:
        left = left + stack.b_V[:, None, :]
    right = stack.W_O @ with_bias_row(model.W_U.detach().mT, stack, 0.0).mT
    return FactoredMatrix(*_unstacked(head, left, right))


def _places(query: Side, key: Side, model: Any) -> Any:
    known = "position" not in (query, key) or hasattr(model, "W_pos")
    return known or "'token' on both sides, because this model has no table of positions. Use offset= if they are rotary"


def _how_far(model: Any, head: HeadNames, offset: int | None, rotation_matrix: Tensor | None) -> Any:
    if heads(model)[head].positions == "rotary":
        given = offset is not None or rotation_matrix is not None
        return given or (
            "an offset, because queries and keys are rotated by their positions and no one table holds for all distances. "
            "Write offset=1 for the previous token, offset=0 for the token itself"
        )
    return offset is None or "none: positions are added to the stream (query='position', key='position'). Leave offset out"


@public
@must(_places)
@must(_how_far)
@must(lambda rotation_matrix, model: rotation_matrix is None
     or (len(rotation_matrix), rotation_matrix.dtype) == (model.cfg.d_head, model.W_E.dtype)
     or f"[{model.cfg.d_head}, {model.cfg.d_head}] in {model.W_E.dtype}, as the model's heads")
def full_qk(
    model: HasWeights,
    head: HeadNames,
    *,
    query: Side = "token",
    key: Side = "token",
    offset: Natural | None = None,
    rotation_matrix: Float[Tensor, "d_head d_head"] | None = None,
    biases: bool = False,
) -> "FactoredMatrix":
    r"""The score a destination gives a source: $W_E W_Q W_K^\top W_E^\top / \sqrt{d_{head}}$, row = destination.

    `query` and `key` choose `"token"` ($W_E$) or `"position"` ($W_{pos}$) for either side. Where positions are added to
    the stream, the score of token $a$ at $i$ for token $b$ at $j$ is the sum of the four tables at $(a,b)$, $(a,j)$,
    $(i,b)$ and $(i,j)$: "content or position, not both" would be two of them.

    **Shapes**: `[d_vocab or n_ctx, d_vocab or n_ctx]`; a list of heads gives a leading axis. **Biases**:
    `biases=True` adds `b_Q` and `b_K`; sum two tables with positions and they are counted twice, so then leave them out
    of all but one. **Rotary positions**: scores depend on how far back the source lies, so `offset` (0 = itself,
    1 = previous token) is required; for models other than native ones give `rotation_matrix` $R$ with
    $s = q R k^\top$. **Error**: exact up to rounding without norms (see `full_ov`).
    **Source**: "A Mathematical Framework for Transformer Circuits", one-layer models; the scale is written out here.
    """
    from transformer_lens import FactoredMatrix

    stack = heads(model)[head]
    left = _embedding(model, query, stack) @ stack.W_Q
    right = _embedding(model, key, stack) @ stack.W_K
    if biases and stack.b_Q is not None:
        left = left + stack.b_Q[:, None, :]
    if biases and stack.b_K is not None:
        right = right + stack.b_K[:, None, :]
    if rotation_matrix is not None:
        left = left @ rotation_matrix
    elif stack.turn is not None:
        left = left @ stack.turn.matrix(offset or 0, stack.d_head).to(left)
    elif stack.positions == "rotary":
        left = left @ torch.stack([rotation(model, layer, offset or 0) for layer in stack.layers]).to(left)
    return FactoredMatrix(*_unstacked(head, left / stack.scale, right.mT))


def _embedding(model: Any, side: Side, stack: Heads) -> Float[Tensor, "row d_model"]:
    return with_bias_row((model.W_E if side == "token" else model.W_pos).detach(), stack)


def with_bias_row(table: Float[Tensor, "row d_model"], stack: Heads, mark: float = 1.0) -> Tensor:
    """A table for heads on one more coordinate, those of a converted model: the bias token comes last."""
    if table.shape[1] == stack.d_model:
        return table
    return torch.block_diag(table, table.new_tensor([[mark]]))


def _unstacked(head: Any, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    single = isinstance(head, (str, int))
    return (left[0], right[0]) if single else (left, right)
