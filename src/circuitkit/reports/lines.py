"""A line of a report, and the behaviours of heads."""

from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan


class Behaviour(StrEnum):
    """What a head may do, in the words and in the order of a report."""

    PREFIX_MATCHING = "prefix matching"
    PREVIOUS_TOKEN = "previous token"
    DUPLICATE_TOKEN = "duplicate token"
    FIRST_TOKEN = "first token"
    COPYING = "copying"
    SUPPRESSION = "copy suppression"


@dataclass(frozen=True)
class Line:
    """A line of the table of a report; its numbers are rounded to six digits, or NaN if there is none.

    Parameters
    ----------
    name : of a head, a wire, a component, a circuit; heads that are cut together are joined by "+"
    measure : a behaviour, or another word for what was measured
    value : the measure
    low, high : its interval
    control : what the same measure gives where there is nothing to find
    p : the p-value of the excess over control and floor
    named : whether the report names the line; None if no rule decides this
    text : tokens, the behaviour of a wire, or other details
    """

    name: str
    measure: str
    value: float
    low: float = nan
    high: float = nan
    control: float = nan
    p: float = nan
    named: bool | None = None
    text: str = ""

    def __post_init__(self) -> None:
        for column in ("name", "measure", "text"):  # a behaviour becomes its word
            object.__setattr__(self, column, str(getattr(self, column)))
        for column in ("value", "low", "high", "control", "p"):
            number = getattr(self, column)
            if not isnan(number):  # NaN in every line is the same object, so lines can be equal
                object.__setattr__(self, column, float(f"{number:.6g}"))

    @property
    def excess(self) -> float:
        """By how much the value exceeds the control."""
        return self.value - self.control


Results = dict[str, list[Line]]
"""The lines of a report by part."""
