"""The stored tables of the superposition studies, and success rates with their intervals."""

import pytest

from circuitkit.superposition import load_results, rate


def test_no_stored_original_beats_the_exact_answer():
    rows = load_results("originals")
    assert {row["config"] for row in rows} == {"2H3T", "3H4T", "4H5T"}
    assert all(isinstance(row["loss"], float) for row in rows)
    assert all(row["loss"] > row["bayes_loss"] for row in rows)


def test_a_missing_table_is_named():
    with pytest.raises(ValueError, match=r"no stored file 'nothing.csv'. There are"):
        load_results("nothing")


def test_rates_have_wilson_intervals():
    # by hand: z^2 / (20 + z^2) = 3.8415 / 23.8415
    assert [round(x, 3) for x in rate(0, 20)[2:]] == [0.0, 0.161]
    assert [round(x, 3) for x in rate(20, 20)[2:]] == [0.839, 1.0]
    low, high = rate(30, 60)[2:]
    assert low + high == pytest.approx(1)
    assert str(rate(9, 10)) == "9/10 = 0.90 (95 % interval 0.60 to 0.98)"
    with pytest.raises(ValueError, match="k=3, n=2; expected 0 <= k <= n"):
        rate(3, 2)
