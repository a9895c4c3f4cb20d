"""Nothing that is compared block by block is ever formed whole, and what cannot fit is refused before it is made."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from circuitkit import anatomy
from circuitkit._blocks import largest_entries
from circuitkit.circuits import (
    composition_scores,
    full_ov,
    random_heads,
)


class Largest(TorchDispatchMode):
    """The most numbers that any one new result holds, or any of one dtype."""

    numbers = 0

    def __init__(self, *dtypes):
        super().__init__()
        self.dtypes = dtypes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor) and (not self.dtypes or value.dtype in self.dtypes):
                self.numbers = max(
                    self.numbers, value.untyped_storage().nbytes() // value.element_size()
                )
        return out


def largest(work, *dtypes):
    with Largest(*dtypes) as seen:
        work()
    return seen.numbers


@pytest.fixture
def wide():
    """A vocabulary of 600 for 12 dimensions."""
    draw = torch.Generator().manual_seed(0)
    W_E, W_U = torch.randn(600, 12, generator=draw), torch.randn(12, 600, generator=draw)
    return anatomy.from_heads(random_heads(2, 12, 4), W_E, W_U)


def test_tables_over_the_vocabulary_are_never_formed(wide, monkeypatch):
    monkeypatch.setattr("circuitkit._blocks._BLOCK", 3000)
    table, tables = full_ov(wide, "L0H0"), 600 * 12  # W_E, and what full_ov holds
    assert largest(lambda: largest_entries(table.A, table.B, 10)) <= tables


@pytest.mark.parametrize("baseline", ["random", "rotated"])
def test_composition_widens_and_holds_a_tile_at_a_time(monkeypatch, baseline):
    monkeypatch.setattr("circuitkit._blocks._BLOCK", 500)
    monkeypatch.setattr("circuitkit._blocks._TILE", 480)
    late = random_heads(30, 12, 4, layer=1, seed=1).to(torch.float64)
    early = random_heads(20, 12, 4).to(torch.float64)
    early = replace(early, W_O=early.W_O * (torch.arange(12) < 8))
    found = composition_scores(early, late, "K", baseline=baseline)
    half = [one.to(torch.bfloat16) for one in (early, late)]
    composition_scores(*half, "K", baseline=baseline)  # random heads of these sizes are drawn once
    assert (
        largest(lambda: composition_scores(*half, "K", baseline=baseline), torch.float32) < 20 * 48
    )  # a whole factor
    monkeypatch.undo()
    whole = composition_scores(early, late, "K", baseline=baseline)
    torch.testing.assert_close(found.score, whole.score, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.baseline, whole.baseline, rtol=1e-10, atol=0)
