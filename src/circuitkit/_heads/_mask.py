"""Which source positions a destination position may look at."""

from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from circuitkit._contract import Natural, public

Mask = Literal["causal", "full", "self_or_first"]


@public
def allowed_pairs(mask: Mask, n_pos: Natural, device: torch.device | str | None = None) -> Bool[Tensor, "dst src"]:
    """True where attention is allowed.

    - `"causal"`: the position itself and everything before it.
    - `"full"`: every position (encoders).
    - `"self_or_first"`: the position itself and position 0, the bias token of a neuron that became a head
      (the mask matrix of "Attention-Only Transformers", Theorem 2, with the bias token first, so that it is causal).
    """
    pairs = torch.ones(n_pos, n_pos, dtype=torch.bool, device=device)
    if mask == "causal":
        return pairs.tril()
    if mask == "self_or_first":
        pairs = torch.eye(n_pos, dtype=torch.bool, device=device)
        pairs[:, 0] = True
    return pairs
