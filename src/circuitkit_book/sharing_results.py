"""Stored results of the study `studies/sharing_in_text.md`, in percent and in percentage points, for two pages of chapter 5."""

import pandas as pd

from circuitkit_book.stored_tables import load_results

__all__ = [
    "by_layer",
    "changes_over_models",
    "excess_of_starts",
    "excess_of_targets",
    "excess_over_nulls",
]

ARMS = {
    ("layer", ""): "the layer",
    ("gates", 0.0): "gates, alpha 0",
    ("gates", 0.3): "gates, alpha 0.3",
    ("gates", 1.0): "gates, alpha 1",
    ("writes", 0.3): "penalty on writes",
    ("halves", ""): "split heads",
    ("halves", 0.3): "from split, alpha 0.3",
}
"""What the pages call the layers and blocks of `text_targets`."""
STARTS = {
    ("layer", ""): "the layer",
    ("silent", 0.3): "from silent, alpha 0.3",
    ("silent", 0.0): "from silent, alpha 0",
    ("random", ""): "random, no gates",
    ("random", 0.3): "from random, alpha 0.3",
    ("random", 0.0): "from random, alpha 0",
    ("halves", ""): "split heads",
    ("halves", 0.0): "from split, alpha 0",
}
"""What the pages call the layers and blocks of `text_starts`."""


def by_layer(name: str) -> pd.DataFrame:
    """A stored table whose rows have the names of its layers, such as `two-layer L1`."""
    table = pd.DataFrame(load_results(name))
    return table.set_index(table.model + " L" + table.layer.astype(str))


def excess_over_nulls(limit: float = 0.2, level: str = "pairs") -> pd.DataFrame:
    """The share of strong pairs that are shared, and its excess over each null with a 95% interval.

    Parameters
    ----------
    limit : the share of the edge's effect above which other heads count
    level : `"pairs"` or `"positions"`

    Returns
    -------
    One row for each layer and null, in percent and percentage points.
    """
    table = by_layer("text_sharing")
    table = table[(table.limit == limit) & (table.level == level) & (table.kind == "shared")]
    table = table.set_index(table.null.replace("permuted", "any pair"), append=True)
    columns = {"layer": table.value, "of the null": table.null_mean}
    columns["excess"] = table.value - table.null_mean
    columns |= {"low": table.excess_low, "high": table.excess_high}
    return pd.DataFrame({name: pd.to_numeric(found) for name, found in columns.items()}).mul(100)


def excess_of_targets(column: str = "excess") -> pd.DataFrame:
    """A column of the study on seven models, by default the excess: one row for each arm, one column for each model."""
    table = pd.DataFrame(load_results("text_targets"))
    table["arm"] = [ARMS.get(arm) for arm in zip(table.arm, table.alpha, strict=True)]
    wide = table.pivot_table(column, "arm", "seed")
    return 100 * wide.loc[list(ARMS.values())].rename_axis(index=None, columns=None)


def excess_of_starts(column: str = "excess") -> pd.DataFrame:
    """A column of the study on blocks of eight heads, by default the excess: one row for each start, one column for each model.

    Entries are means over the seeds of the blocks, in percentage points; heads and gates are counted in units.
    """
    table = pd.DataFrame(load_results("text_starts"))
    table["arm"] = [STARTS.get(arm) for arm in zip(table.start, table.alpha, strict=True)]
    wide = table.pivot_table(column, "arm", "target", sort=False)
    wide = wide.loc[list(STARTS.values())].rename_axis(index=None, columns=None)
    return wide if column in ("live", "open") else 100 * wide


def changes_over_models(excess: pd.DataFrame) -> pd.DataFrame:
    """The mean change from the first row over models, with a 95% t interval and what the test could have seen.

    Parameters
    ----------
    excess : one row for each arm, one column for each model; an arm may lack models

    Returns
    -------
    For each arm the mean change, its interval (`low`, `high`), and the size of a true change that a two-sided t test at 5% detects
    with a probability of 80% if the changes spread as they do (`visible`).
    """
    from scipy.optimize import root_scalar
    from scipy.stats import nct, t

    change = excess - excess.iloc[0]
    n = change.count(axis=1)
    limit = pd.Series(t.ppf(0.975, n - 1), n.index)
    error = change.std(axis=1) / n**0.5

    def shift(arm: str) -> float:
        solution = root_scalar(lambda x: nct.sf(limit[arm], n[arm] - 1, x) - 0.8, bracket=(1, 10))
        return solution.root

    table = pd.DataFrame({"change": change.mean(axis=1)})
    table["low"] = table.change - limit * error
    table["high"] = table.change + limit * error
    table["visible"] = [shift(arm) * error[arm] for arm in n.index]
    return table
