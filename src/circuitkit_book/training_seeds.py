"""Which statements on the two-layer model hold for other training seeds; the pages of chapters 1 to 3 read it."""

import math
from dataclasses import dataclass

import pandas as pd

from circuitkit.data import stored

__all__ = ["STATEMENTS", "Statement", "counts", "holds", "stored_seeds"]


@dataclass(frozen=True)
class Statement:
    """A statement of a page, and the number that decides whether a model agrees with it.

    Parameters
    ----------
    chapter : the number of its chapter
    text : the statement, in which a head is named by its role
    measure : the column of the table that decides
    side : "above" or "below": on which side of the bound the number has to be
    bound : the bound, chosen before the first seed was measured

    Notes
    -----
    Source: `studies/training_seeds.md`, which defines the measures.
    """

    chapter: int
    text: str
    measure: str
    side: str
    bound: float

    def holds(self, number: float) -> bool:
        """Whether a number agrees with the statement; NaN, a number that does not exist, does not."""
        return number > self.bound if self.side == "above" else number < self.bound


STATEMENTS = {
    "induction": Statement(3, "A head has an induction score.", "induction score", "above", 0.5),
    "one induction": Statement(
        3, "No other head has one.", "second induction score", "below", 0.1
    ),
    "previous": Statement(
        3, "A head of layer 0 attends to the previous token.", "one back", "above", 0.9
    ),
    "two back": Statement(3, "A head of layer 0 attends two tokens back.", "two back attention", "above", 0.9),
    "bias": Statement(
        1, "A head writes a constant that the model needs.", "cost of constant head", "above", 0.5
    ),
    "sink": Statement(
        3, "A head attends to the first token only, without effect.", "idle sinks", "above", 0.5
    ),
    "current": Statement(
        1, "A head of layer 1 attends to the current token.", "to current token", "above", 0.9
    ),
    "copies": Statement(
        3, "The OV matrix of the induction head copies.", "own token in OV", "above", 0.5
    ),
    "wire K": Statement(
        3, "The wire from previous to K of induction is needed.", "left without previous K", "below", 0.5
    ),
    "wire Q": Statement(
        3, "The wire from previous to Q of induction is needed.", "left without previous Q", "below", 0.5
    ),
    "second wire": Statement(
        3, "The wire from two back to K of induction is needed.", "left without two back K", "below", 0.5
    ),
    "nine wires": Statement(
        3, "None of the nine other wires is needed.", "least left of nine", "above", 0.9
    ),
    "values": Statement(
        3, "The values of induction need nothing from layer 0.", "left without V", "above", 0.9
    ),
    "two terms": Statement(
        3, "Two of 36 terms separate the right source.", "second term over rest", "above", 0.0
    ),
    "first match": Statement(
        3, "The first match is in the weights.", "first match", "above", 0.5
    ),
    "second match": Statement(
        3, "The second match is in the weights.", "second match", "above", 0.5
    ),
    "no third match": Statement(
        3, "No other pair of parts matches.", "largest other match", "below", 0.1
    ),
    "two tokens": Statement(
        3, "Without the token before, the head fails.", "left after change 1 back", "below", 0.5
    ),
    "not three": Statement(
        3, "The token two before does not matter.", "left after change 2 back", "above", 0.9
    ),
    "false alarm": Statement(
        3, "The largest composition score is of a wire without cost.", "cost at largest score", "below", 0.1
    ),
    "missed wire": Statement(
        3, "A costly wire has the score of random matrices.", "least score of costly", "below", 1.25
    ),
    "overlap": Statement(
        3, "The overlap ranks the costly wires first, with one exception.", "overlap ranks lost", "below", 1.5
    ),
    "threshold": Statement(
        3, "The first token's threshold is a term of position and embedding.", "threshold over rest", "above", 0.0
    ),
    "or": Statement(1, "The model predicts `or`.", "P(or)", "above", 0.5),
    "Harris": Statement(1, "It does not with another name.", "P(or), Harris", "below", 0.05),
    "cut K": Statement(
        1, "The prediction needs the wire from previous to K.", "P(or) left without K", "below", 0.1
    ),
    "cut V": Statement(
        1, "It does not need the wire from previous to V.", "P(or) left without V", "above", 0.9
    ),
    "contribution": Statement(
        1, "The induction head adds most to the logit of `or`.", "contribution over rest", "above", 0.0
    ),
    "not two": Statement(
        3, "Previous and induction alone are not enough.", "P(or) of two heads", "below", 0.1
    ),
    "three heads": Statement(
        3, "A set of heads predicts `or` exactly if it has the three.", "sets as expected", "above", 255.5
    ),
    "three wires": Statement(
        3, "The three wires alone do better than all twelve.", "P(or) gained with three wires", "above", 0.0
    ),
    "paths": Statement(
        2, "Virtual heads improve the loss much less than heads.", "virtual over single", "below", 0.2
    ),
    "virtual": Statement(
        2, "The three largest virtual heads begin at previous.", "virtual from previous", "above", 2.5
    ),
    "elsewhere induction": Statement(
        2, "Other text hardly needs the induction head.", "elsewhere, induction", "below", 0.1
    ),
    "elsewhere two back": Statement(
        2, "Other text hardly needs the head that looks two back.", "elsewhere, two back", "below", 0.1
    ),
    "elsewhere previous": Statement(
        2, "Other text needs the previous-token head.", "elsewhere, previous", "above", 0.1
    ),
    "sudden": Statement(
        3, "The loss falls suddenly.", "share of fall in 1,000 steps", "above", 0.5
    ),
}  # fmt: skip


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


def counts() -> pd.DataFrame:
    """Count for each statement in how many models of other seeds it holds, with its 95% interval.

    Returns
    -------
    One row for each key of `STATEMENTS`. Seed 0 is left out of "seeds", because it repeats the shipped
    model; "of" is the number of the others. "low" and "high" are the limits of Clopper and Pearson
    for the share of seeds. "shipped" and "seed 0" say whether the statement holds there, and "random" in how
    many models at step 0.

    Notes
    -----
    Source: Clopper and Pearson 1934 for the interval.

    Examples
    --------
    >>> bool(counts().loc["induction", "shipped"])
    True
    """
    from scipy.stats import binomtest

    decided = holds(stored_seeds())
    trained = [name for name in decided if name[1] > 0]
    others = [name for name in trained if name[0] not in ("shipped", "seed 0")]
    result = pd.DataFrame(index=decided.index)
    result["shipped"] = decided["shipped"].iloc[:, 0]
    result["seed 0"] = decided[[name for name in trained if name[0] == "seed 0"]].iloc[:, 0]
    result["seeds"] = decided[others].sum(axis=1)
    result["of"] = len(others)
    limits = [binomtest(int(n), len(others)).proportion_ci(0.95) for n in result["seeds"]]
    result["low"] = [limit.low for limit in limits]
    result["high"] = [limit.high for limit in limits]
    result["random"] = decided[[name for name in decided if name[1] == 0]].sum(axis=1)
    return result
