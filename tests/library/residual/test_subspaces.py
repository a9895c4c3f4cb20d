"""What heads can write and read, and the angles between these subspaces."""

import pytest
import torch

from circuitkit import Heads
from circuitkit.residual import subspace_overlap


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def draw(n, d_model, d_head, layer=0):
    W = random(4, n, d_model, d_head, seed=layer)
    names = tuple(f"L{layer}H{i}" for i in range(n))
    return Heads(names, W[0], W[1], W[2], W[3].mT, layers=(layer,) * n)


@pytest.mark.parametrize("side", ["Q", "K", "V"])
def test_overlap_equals_that_of_projections(side, close):
    earlier, later = draw(2, 11, 3), draw(4, 11, 5, layer=1)
    overlap = subspace_overlap(earlier, later, side)
    assert overlap.axes == {"writer": earlier.names, "reader": later.names}

    def onto(M):
        return M @ torch.linalg.pinv(M)

    for i, writer in enumerate(earlier.names):
        for j, reader in enumerate(later.names):
            written, read = onto(earlier.W_O[i].T), onto(getattr(later, f"W_{side}")[j])
            expected = torch.trace(written @ read).item() / 5
            assert overlap[writer, reader] == pytest.approx(expected, abs=1e-11)


def test_half_precision_gives_about_the_same_overlap(close):
    earlier, later = (draw(2, 12, 4, layer=layer).to(torch.bfloat16) for layer in (0, 1))
    exact = subspace_overlap(earlier.to(torch.float64), later.to(torch.float64))
    close(subspace_overlap(earlier, later).values.double(), exact.values, 1e-5)


def test_heads_of_two_streams_are_refused():
    with pytest.raises(ValueError, match=r"stream of 7 dimensions .* read one of 5. Give heads of"):
        subspace_overlap(draw(1, 7, 2), draw(1, 5, 2))
