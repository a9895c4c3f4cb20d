"""The table of training seeds: intervals against scipy, and decisions on numbers that are known."""

import math

import pandas as pd
import pytest
from scipy.stats import binomtest

from circuitkit_book import training_seeds


@pytest.mark.parametrize(("n", "of"), [(0, 1), (0, 7), (3, 7), (7, 7)])
def test_an_interval_is_that_of_scipy(n, of):
    expected = binomtest(n, of).proportion_ci(0.95)
    assert training_seeds.interval(n, of) == pytest.approx((expected.low, expected.high), abs=1e-8)


def test_a_number_that_does_not_exist_decides_against_a_statement():
    of = {one.measure: [math.nan] for one in training_seeds.STATEMENTS.values()}
    index = pd.MultiIndex.from_tuples([("seed 1", 12000)], names=["model", "step"])
    assert not training_seeds.holds(pd.DataFrame(of, index)).any(axis=None)


def test_the_shipped_model_agrees_with_every_statement_that_a_number_decides():
    table = training_seeds.stored_seeds().loc[[("shipped", 24000)]]
    for key, of_shipped in training_seeds.holds(table).iloc[:, 0].items():
        is_measured = not table[training_seeds.STATEMENTS[key].measure].isna().any()
        assert of_shipped == is_measured, key


def test_the_control_is_not_counted_as_a_new_seed():
    table, counts = training_seeds.stored_seeds(), training_seeds.counts()
    names = set(table.index.get_level_values("model")) - {"shipped", "seed 0"}
    assert set(counts["of"]) == {len(names)}
    new = training_seeds.holds(table.loc[[(name, 12000) for name in sorted(names)]])
    assert list(counts["holds"]) == list(new.sum(axis=1))
