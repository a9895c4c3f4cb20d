"""Nothing that is compared block by block is ever formed whole, and what cannot fit is refused before it is made."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from circuitkit import anatomy, heads_of
from circuitkit._blocks import largest_entries
from circuitkit.circuits import (
    composition_scores,
    full_ov,
    path_logits,
    random_heads,
    skip_trigrams,
)
from circuitkit.residual import logit_attribution, subspace_overlap, virtual_weight_table


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
    table, tables = full_ov(wide, "L0H0"), 600 * 12  # W_E, and what full_ov and full_qk hold
    assert largest(lambda: skip_trigrams(wide, "L0H0")) <= max(tables, 4 * 3000)
    assert largest(lambda: largest_entries(table.A, table.B, 10)) <= tables


def test_the_table_of_virtual_weights_holds_no_square_for_each_part(wide, monkeypatch):
    monkeypatch.setattr("circuitkit._blocks._BLOCK", 3000)
    assert largest(lambda: virtual_weight_table(wide)) <= 600 * 12


def test_overlaps_are_formed_in_tiles(monkeypatch):
    monkeypatch.setattr("circuitkit._blocks._BLOCK", 500)
    monkeypatch.setattr("circuitkit._blocks._TILE", 480)
    stack = random_heads(30, 12, 4)
    assert (
        largest(lambda: subspace_overlap(stack, stack)) <= 30 * 48
    )  # what the heads hold; all pairs are 30 * 30 * 16
    whole = subspace_overlap(stack, stack)
    monkeypatch.undo()
    torch.testing.assert_close(whole, subspace_overlap(stack, stack), rtol=1e-5, atol=1e-6)


def test_longest_paths_keep_what_heads_gathered(boot):
    model = boot(
        n_layers=3, attn_only=False, normalization_type="LN", n_heads=6, d_model=48, d_head=2
    )
    tokens = torch.arange(8)[None]
    anatomy(model)
    stream, order_1 = 8 * 48, 1 + 6 * 3 + 3 + 6 * (1 + 2 + 0)
    assert largest(lambda: path_logits(model, tokens, max_order=1)) < order_1 * stream / 2


def test_one_logit_asks_for_no_vocabulary(wide):
    tokens = torch.arange(50)[None]
    assert largest(lambda: logit_attribution(wide, tokens, tokens)) < 50 * 600


def test_what_does_not_fit_says_what_does(boot, monkeypatch):
    model = boot(n_layers=2)
    anatomy(model)
    monkeypatch.setattr("circuitkit._blocks.room", lambda like: 10_000)
    with pytest.raises(
        ValueError,
        match="path_logits would need .* GiB; expected at most .*fewer tokens.*smaller max_order",
    ):
        path_logits(model, torch.arange(8)[None], max_order=2)
    assert len(path_logits(model, torch.arange(1)[None], max_order=0))
    assert len(heads_of(model)) == 6


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
