"""What a report found, in the order in which its page says it: the sentences are in `found.html`."""

import re
from typing import NamedTuple

from circuitkit.reports.lines import Behaviour, Line, Results

N_SENTENCES = 3
ORDER = (
    "predicts repeats",
    Behaviour.PREFIX_MATCHING,
    "wire",
    "group wire",
    "probability without",
    "skip trigram",
    Behaviour.COPYING,
    "copy suppression",
    Behaviour.PREVIOUS_TOKEN,
    Behaviour.DUPLICATE_TOKEN,
    Behaviour.FIRST_TOKEN,
    "probability",
)
"""Kinds of lines, the most telling first."""
ALWAYS = ("predicts repeats", Behaviour.PREFIX_MATCHING)
"""Kinds of lines about which a page says something even where none is named."""


class Finding(NamedTuple):
    """What a report says about one kind of line.

    Parameters
    ----------
    kind : the measure of its lines
    best : the named line with the largest value; where none is named, the one with the largest excess
    named : how many lines are named; of wires, those into the same head for the same behaviour; for
        probabilities, how many there are
    tried : how many lines were tried
    """

    kind: str
    best: Line
    named: int
    tried: int


def findings(results: Results) -> list[Finding]:
    """Return what the first sentences of a page say; that no induction head was found may be one of them."""
    every = [line for lines in results.values() for line in lines]
    found: list[Finding] = []
    inductive = ""
    for kind in ORDER:
        tried = [line for line in every if line.measure == kind]
        named = [line for line in tried if line.named or kind.startswith("probability")]
        if kind in ALWAYS and tried and not named:
            best = max(tried, key=lambda line: line.excess)
        elif named:
            best = max(named, key=lambda line: (telling(line, inductive), line.value))
        else:
            continue
        if kind == "wire":
            named = [
                line for line in named if (reader(line), line.text) == (reader(best), best.text)
            ]
        if kind == Behaviour.PREFIX_MATCHING and named:
            inductive = best.name
        elif kind == Behaviour.COPYING and best.name == inductive:
            continue  # the sentence about prefix matching says it
        found.append(Finding(kind, best, len(named), len(tried)))
    return found[:N_SENTENCES]


def reader(line: Line) -> str:
    """Return the head that a wire enters; of a line about a head, this head."""
    return line.name.split("->")[-1].split(".")[0]


def telling(line: Line, inductive: str) -> bool:
    """Return whether a wire enters the head of the first sentence, on rows of different tokens."""
    return reader(line) == inductive and line.text in list(Behaviour)


def anchor(line: Line) -> str:
    """Return the name of a line in the address of its page.

    Examples
    --------
    >>> anchor(Line("L0H1->L1H3.K", "wire", 0.9, text="prefix matching"))
    'wire-L0H1-L1H3.K-prefix-matching'
    """
    words = re.findall(r"[A-Za-z0-9.]+", f"{line.measure} {line.name} {line.text}")
    return "-".join(words)
