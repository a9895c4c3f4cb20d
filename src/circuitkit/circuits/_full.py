"""Full QK and OV circuits: from tokens and positions in, to scores and logits out, as two thin factors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._heads import Heads, heads, require_bridge
from circuitkit.circuits._rotary import rotation

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix

SIDES = ("token", "position")


def full_ov(
    model: Any,
    head: "str | int | Sequence[str | int]",
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
    rows = _embedding(model, "token", "full_ov") if embed is None else embed
    left = rows @ stack.W_V
    if biases and stack.b_V is not None:
        left = left + stack.b_V[:, None, :]
    right = stack.W_O @ model.W_U.detach()
    return FactoredMatrix(*_unstacked(head, left, right))


def full_qk(
    model: Any,
    head: "str | int | Sequence[str | int]",
    *,
    query: str = "token",
    key: str = "token",
    offset: int | None = None,
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
    for name, side in (("query", query), ("key", key)):
        if side not in SIDES:
            raise ValueError(
                f"full_qk got {name}={side!r}; expected one of {list(SIDES)}, because a stream begins as the sum of a "
                f"token and a position. Write {name}='token'."
            )
    left = _embedding(model, query, "full_qk") @ stack.W_Q
    right = _embedding(model, key, "full_qk") @ stack.W_K
    if biases and stack.b_Q is not None:
        left = left + stack.b_Q[:, None, :]
    if biases and stack.b_K is not None:
        right = right + stack.b_K[:, None, :]
    if rotation_matrix is not None:
        left = left @ rotation_matrix
    elif stack.positions == "rotary" or offset is not None:
        left = left @ _turns(model, stack, offset).to(left)
    return FactoredMatrix(*_unstacked(head, left / stack.scale, right.mT))


def _turns(model: Any, stack: Heads, offset: int | None) -> Float[Tensor, "head d_head d_head"]:
    if stack.positions != "rotary":
        raise ValueError(
            f"full_qk got offset={offset} for a model whose positions are added to the stream; expected no offset, "
            "because its scores depend on positions through query='position' and key='position'. Leave offset out."
        )
    if offset is None:
        raise ValueError(
            "full_qk got no offset for a model with rotary positions; expected how many tokens back the source lies, "
            "because queries and keys are rotated by their positions and no one table holds for all distances. "
            "Write offset=1 for the previous token, offset=0 for the token itself."
        )
    return torch.stack([rotation(model, layer, offset, "full_qk") for layer in stack.layers])


def _embedding(model: Any, side: str, what: str) -> Float[Tensor, "row d_model"]:
    if not hasattr(model, "W_E") or not hasattr(model, "W_U"):
        require_bridge(model, what)
    if side == "token":
        return model.W_E.detach()
    try:
        return model.W_pos.detach()
    except AttributeError:
        raise ValueError(
            f"{what} was asked for positions, but this model has no table of positions (its kind: "
            f"{model.cfg.positional_embedding_type!r}); expected learned or fixed positions that are added to the "
            "stream. For rotary positions use query='token', key='token' and offset=."
        ) from None


def _unstacked(head: Any, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    single = isinstance(head, (str, int))
    return (left[0], right[0]) if single else (left, right)
