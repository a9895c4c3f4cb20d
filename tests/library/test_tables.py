"""Results by name."""

import math

import pytest
import torch

from circuitkit.tables import Table

PAIRS = Table(
    torch.tensor([[0.1, -0.9], [0.4, math.nan]]),
    {"writer": ("L0H0", "L0H1"), "reader": ("L1H0", "L1H1")},
    "composition",
)


def test_names_find_the_value_in_a_row_and_a_column():
    assert PAIRS["L0H1", "L1H0"] == pytest.approx(0.4)
    assert torch.equal(PAIRS["L0H0"], torch.tensor([0.1, -0.9]))


def test_top_ranks_all_entries_and_leaves_nan_out():
    best = PAIRS.top(10)
    assert best.names == ("L0H1, L1H0", "L0H0, L1H0", "L0H0, L1H1")
    assert PAIRS.top(1, absolute=True).names == ("L0H0, L1H1",)


def test_select_keeps_the_entries_with_one_name_on_an_axis():
    into = PAIRS.select(reader="L1H0")
    assert into.axes == {"writer": ("L0H0", "L0H1")}
    assert torch.equal(into.values, torch.tensor([0.1, 0.4]))
    assert into.top(1).names == ("L0H1",)
    assert PAIRS.select(writer="L0H0", reader="L1H1").values == pytest.approx(-0.9)
    with pytest.raises(KeyError, match="axes writer, reader, not 'head'"):
        PAIRS.select(head="L0H0")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(KeyError, match=r"No writer is called 'L0H7'.*L0H1"):
        PAIRS["L0H7"]
    with pytest.raises(KeyError, match="2 axes"):
        PAIRS["L0H0", "L1H0", "Q"]


def test_the_frame_has_both_axes():
    frame = PAIRS.to_frame()
    assert frame.loc["L0H1", "L1H0"] == pytest.approx(0.4)
    assert (frame.index.name, frame.columns.name) == ("writer", "reader")


def test_entries_with_several_numbers_have_no_order():
    by_position = Table(torch.zeros(2, 3), {"head": ("L0H0", "L0H1")})
    with pytest.raises(ValueError, match="no order"):
        by_position.top(1)


def test_names_must_fit_the_values():
    with pytest.raises(ValueError, match=r"\(2,\) names"):
        Table(torch.zeros(3), {"head": ("L0H0", "L0H1")})


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize("k", [-2, 2.5])
def test_top_refuses_what_is_no_count(k):
    with pytest.raises(ValueError, match="number of entries"):
        Table(torch.arange(3.0), {"part": ("a", "b", "c")}).top(k)
