"""Rotary positions as a value: which planes of a head turn, and how fast."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Turn:
    """Queries and keys at position p are turned by `p * angles[n]` in plane n, so a score depends on the distance only.

    **Error**: angles are in the dtype of the model's own tables (float32). **Source**: Su et al. 2021, rotary position embedding.
    """

    planes: Int[Tensor, "plane 2"]
    """The two dimensions of each plane; dimensions in no plane are not turned."""
    angles: Float[Tensor, " plane"]
    """Radians for each position."""
    gain: float = 1.0
    """Turned dimensions are multiplied by this, in queries and keys alike (YaRN)."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn) or self.gain != other.gain:
            return False
        return torch.equal(self.planes, other.planes) and torch.equal(self.angles, other.angles)

    __hash__ = object.__hash__

    def __call__(
        self, x: Float[Tensor, "*batch pos d_head"], at: Int[Tensor, " pos"] | None = None
    ) -> Float[Tensor, "*batch pos d_head"]:
        """Each row turned to its position (`at`, by default 0, 1, 2, ...)."""
        at = torch.arange(x.shape[-2], device=x.device) if at is None else at
        angle = at[:, None].to(self.angles) * self.angles
        cos, sin = (self.gain * part.to(x) for part in (angle.cos(), angle.sin()))
        first, second = self.planes.T
        out = x.clone()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        return out

    def matrix(self, distance: int, d_head: int) -> Float[Tensor, "d_head d_head"]:
        """`R` such that a source `distance` tokens back scores `q R k^T`."""
        rows = torch.eye(d_head, dtype=self.angles.dtype, device=self.angles.device)
        there, here = (self(rows, torch.full((d_head,), p, device=rows.device)) for p in (distance, 0))
        return there @ here.mT
