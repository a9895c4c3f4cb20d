"""The rotation between a query and a key that lie some distance apart."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def rotation(model: Any, layer: int, offset: int) -> Float[Tensor, "d_head d_head"]:
    r"""$R$ such that the score of a source `offset` tokens back is $q R k^\top$, from the model's own tables.

    **Error**: as exact as the model's tables of cosines (float32 in a float32 model). Only native models store their
    tables in one known way; for others this raises.
    """
    tables: Any = getattr(getattr(model.blocks[layer].attn, "original_component", None), "rotary", None)
    if not hasattr(tables, "apply_rope") or not 0 <= offset < model.cfg.n_ctx:
        raise ValueError(
            f"offset={offset} in a model of kind {model.cfg.architecture!r}; expected 0 to {model.cfg.n_ctx - 1} and a native model: others "
            "order the rotated dimensions in their own ways. Read patterns from run_with_cache, or give full_qk(rotation_matrix=...)."
        )
    d_head = model.cfg.d_head
    rows = torch.eye(d_head, device=tables.cos_cached.device, dtype=tables.cos_cached.dtype)[None, None]
    place = torch.full((1, d_head), offset, device=rows.device)
    return tables.apply_rope(rows, rows, position_ids=place)[0][0, 0]
