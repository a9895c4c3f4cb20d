"""Which statements on the two-layer model hold for other training seeds; the pages of chapters 1 to 3 read it."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from circuitkit.data import stored

__all__ = [
    "STATEMENTS",
    "Statement",
    "counts",
    "holds",
    "interval",
    "stored_seeds",
    "table_of_statements",
]


@dataclass(frozen=True)
class Statement:
    """A statement of a page, and the number that decides whether a model agrees with it.

    Parameters
    ----------
    text : the statement in a few words, in which a head is named by its role
    measure : the column of the table that decides
    side : "above" or "below": on which side of the bound the number has to be
    bound : the bound, chosen before the first seed was measured

    Notes
    -----
    Source: `studies/training_seeds.md`, which defines the measures.
    """

    text: str
    measure: str
    side: str
    bound: float

    def holds(self, number: float) -> bool:
        """Whether a number agrees with the statement; NaN, a number that does not exist, does not."""
        return number > self.bound if self.side == "above" else number < self.bound


STATEMENTS = {
    "induction": Statement("one head has an induction score", "induction score", "above", 0.5),
    "one induction": Statement("no other head has one", "second induction score", "below", 0.1),
    "previous": Statement("a head attends one token back", "one back", "above", 0.9),
    "two back": Statement("a head attends two tokens back", "two back attention", "above", 0.9),
    "bias": Statement("a head is a bias that is needed", "cost of constant head", "above", 0.5),
    "sink": Statement("a head attends to token 0 without effect", "idle sinks", "above", 0.5),
    "current": Statement("a head attends to the current token", "to current token", "above", 0.9),
    "copies": Statement("the induction head copies", "own token in OV", "above", 0.5),
    "wire K": Statement("needed: previous to K", "left without previous K", "below", 0.5),
    "wire Q": Statement("needed: previous to Q", "left without previous Q", "below", 0.5),
    "second wire": Statement("needed: two back to K", "left without two back K", "below", 0.5),
    "nine wires": Statement("the nine others are not needed", "least left of nine", "above", 0.9),
    "values": Statement("V needs nothing from layer 0", "left without V", "above", 0.9),
    "two terms": Statement("two terms find the source", "second term over rest", "above", 0.0),
    "first match": Statement("first match in the weights", "first match", "above", 0.5),
    "second match": Statement("second match in the weights", "second match", "above", 0.5),
    "no third": Statement("no other pair matches", "largest other match", "below", 0.1),
    "two tokens": Statement("the token before matters", "left after change 1 back", "below", 0.5),
    "not three": Statement(
        "the one before that does not", "left after change 2 back", "above", 0.9
    ),
    "alarm": Statement("largest score: idle wire", "cost at largest score", "below", 0.1),
    "missed wire": Statement("random score: needed wire", "least score of costly", "below", 1.25),
    "overlap": Statement("overlap: at most one error", "overlap ranks lost", "below", 1.5),
    "threshold": Statement("threshold: position, embedding", "threshold over rest", "above", 0.0),
    "or": Statement("predicts `or`", "P(or)", "above", 0.5),
    "Harris": Statement("not with *Harris*", "P(or), Harris", "below", 0.05),
    "cut K": Statement("`or` needs previous to K", "P(or) left without K", "below", 0.1),
    "cut V": Statement("`or` does not need previous to V", "P(or) left without V", "above", 0.9),
    "adds most": Statement("induction adds most", "contribution over rest", "above", 0.0),
    "not two": Statement("two heads are not enough", "P(or) of two heads", "below", 0.1),
    "three heads": Statement("`or` if and only if the three", "sets as expected", "above", 255.5),
    "three wires": Statement(
        "three wires beat twelve", "P(or) gained with three wires", "above", 0.0
    ),
    "virtual less": Statement("virtual heads matter less", "virtual over single", "below", 0.2),
    "virtual": Statement("the largest start at previous", "virtual from previous", "above", 2.5),
    "text, induction": Statement(
        "text hardly needs induction", "elsewhere, induction", "below", 0.1
    ),
    "text, two back": Statement("text hardly needs two back", "elsewhere, two back", "below", 0.1),
    "text, previous": Statement("text needs previous", "elsewhere, previous", "above", 0.1),
    "sudden": Statement("the loss falls suddenly", "share of fall in 1,000 steps", "above", 0.5),
}


def stored_seeds() -> pd.DataFrame:
    """Load what was measured on the two-layer model and on models from other training seeds.

    Returns
    -------
    One row for each model and one column for each measure. The index has the levels "model"
    (`"shipped"` or `"seed 0"` to `"seed 7"`) and "step", the number of training steps; a model at
    step 0 is random.

    Notes
    -----
    Source: `studies/training_seeds.py`, which trained and measured them.

    Examples
    --------
    >>> stored_seeds().loc[("shipped", 24000), "induction"]
    'L1H3'
    """
    table = pd.DataFrame(stored("induction", "training_seeds.csv"))
    return table.replace("", math.nan).set_index(["model", "step"])


def holds(table: pd.DataFrame) -> pd.DataFrame:
    """Decide every statement for every model: `[statement, model]`.

    Parameters
    ----------
    table : rows of `stored_seeds`

    Notes
    -----
    Source: this book.
    """
    decided = {
        key: [one.holds(float(number)) for number in table[one.measure]]
        for key, one in STATEMENTS.items()
    }
    return pd.DataFrame(decided, table.index).T


def interval(n: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Compute the limits of Clopper and Pearson for a share of which `n` in `of` were seen.

    Parameters
    ----------
    n : how many were seen
    of : in how many
    level : the confidence

    Notes
    -----
    The lower limit is the share for which `n` or more have the probability `(1 - level) / 2`, the upper
    one that for which `n` or fewer have it. Error: 1e-9. Source: the interval of Clopper and Pearson.

    Examples
    --------
    >>> [round(limit, 2) for limit in interval(7, 7)]
    [0.59, 1.0]
    """

    def at_least(k: int, share: float) -> float:
        of_k = [math.comb(of, i) * share**i * (1 - share) ** (of - i) for i in range(k, of + 1)]
        return math.fsum(of_k)

    def share_at(k: int, probability: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if at_least(k, middle) < probability else (low, middle)
        return low

    tail = (1 - level) / 2
    return (share_at(n, tail) if n else 0.0, share_at(n + 1, 1 - tail) if n < of else 1.0)


def counts() -> pd.DataFrame:
    """Decide every statement for every model, and count in how many new seeds it holds.

    Returns
    -------
    One row for each key of `STATEMENTS`. "shipped" and "seed 0" to "seed 7" say whether the statement holds
    after training. "holds" counts the seeds other than 0, which repeats the shipped model, and "of" is
    their number. "low" and "high" are the limits of their `interval`. "random" counts the models at step 0.

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> bool(counts().loc["induction", "shipped"])
    True
    """
    decided = holds(stored_seeds())
    is_random = decided.columns.get_level_values("step") == 0
    trained = decided.loc[:, ~is_random].droplevel("step", axis=1)
    others = trained.drop(columns=["shipped", "seed 0"])
    result = trained.copy()
    result["holds"] = others.sum(axis=1)
    result["of"] = others.shape[1]
    limits = [interval(n, others.shape[1]) for n in result["holds"]]
    result["low"] = [low for low, _ in limits]
    result["high"] = [high for _, high in limits]
    result["random"] = decided.loc[:, is_random].sum(axis=1)
    return result


def table_of_statements() -> pd.DataFrame:
    """Show `counts` with the words of the statements, as the appendix on seeds prints it.

    A cell is empty where the number that decides does not exist, for example because the model has no
    induction head in layer 1.

    Notes
    -----
    Source: this book.
    """
    found, table = counts(), stored_seeds()
    names = [name for name in found if name == "shipped" or name.startswith("seed ")]
    shown: Any = found[names].replace({True: "yes", False: "no"})
    trained = table[table.index.get_level_values("step") > 0].droplevel("step")
    for key, one in STATEMENTS.items():
        for name in names:
            if pd.isna(trained.loc[name, one.measure]):
                shown.loc[key, name] = ""
    shown.columns = [name.removeprefix("seed ") for name in names]
    shown["holds"] = [f"{n} of {of}" for n, of in zip(found["holds"], found["of"], strict=True)]
    shown["95%"] = [
        f"{low:.0%} to {high:.0%}" for low, high in zip(found["low"], found["high"], strict=True)
    ]
    shown["random"] = found["random"]
    shown.index = [one.text.replace("`", "").replace("*", "") for one in STATEMENTS.values()]
    return shown
