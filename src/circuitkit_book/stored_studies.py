"""Results of long experiments of chapter 3, which the pages read from files of this package."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.data import stored
from circuitkit.effects import Effect
from circuitkit.induction import BEHAVIOURS, InductionLoss
from circuitkit.tables import Table

__all__ = [
    "Survey",
    "stored_matches",
    "stored_methods",
    "stored_survey",
    "stored_texts",
    "stored_zoo",
]

STORED_BEHAVIOURS = ("prefix_matching", "previous_token", "duplicate_token", "copying")
"""What the stored file calls the columns of `induction.scores`, in their order."""


@dataclass(frozen=True, eq=False)
class Survey:
    """Scores of all heads, and the induction loss without three groups of heads.

    Parameters
    ----------
    scores : the table of `scores` on the default rows
    groups : names of heads, under `"induction"`, `"previous token"` and `"random"`
    losses : the induction loss, under `"nothing"` of the whole model, under the name of a group of
        the model without that group
    provenance : where the weights came from
    heads : for each method of attribution, an estimate of what ablating each head costs `[head]`, in
        the order of the scores
    seconds : the processor time of each method of attribution
    effects : results of `circuitkit.effect`, without the names of the random sets
    more : other results of the same study, by name

    Notes
    -----
    Source: this book; see `stored_survey`.
    """

    scores: Table
    groups: dict[str, tuple[str, ...]]
    losses: dict[str, InductionLoss]
    provenance: dict[str, Any]
    heads: dict[str, Float[Tensor, " head"]]
    seconds: dict[str, float]
    effects: dict[str, Effect]
    more: dict[str, Any]


@functools.cache
def stored_survey(name: str = "smollm2-135m") -> Survey:
    """Load the survey of a model whose weights do not ship with the book.

    Parameters
    ----------
    name : `"smollm2-135m"`

    Raises
    ------
    ValueError : if no survey of this name is stored

    Notes
    -----
    Source: `studies/edition-2/study/real_induction.py` and `real_circuit.py`, which computed it.

    Examples
    --------
    >>> stored_survey().provenance["model"]
    'SmolLM2-135M-Instruct'
    """
    data = stored("induction", f"{name}.json")
    columns = [data["scores"][key] for key in STORED_BEHAVIOURS]
    axes = {"head": tuple(data["names"]), "behaviour": BEHAVIOURS}
    effects = {}
    for key, entry in data["effects"].items():
        values = torch.tensor(entry["values"])
        effects[key] = Effect(entry["done"], entry["measure"], (tuple(entry["cut"]),), values)
    return Survey(
        scores=Table(torch.tensor(columns).T, axes, "score"),
        groups={group: tuple(names) for group, names in data["groups"].items()},
        losses={group: InductionLoss(*values) for group, values in data["losses"].items()},
        provenance=data["provenance"],
        heads={method: torch.tensor(entry["values"]) for method, entry in data["heads"].items()},
        seconds={method: entry["seconds"] for method, entry in data["heads"].items()},
        effects=effects,
        more=data["more"],
    )


def stored_zoo() -> list[dict[str, Any]]:
    """Load the results of sixteen small models, eight seeds on each of two tasks.

    Returns
    -------
    For each model: its accuracy in every tenth step of training (`"curve"`), that of the trained
    model (`"whole"`), that with all wires of a kind between the layers replaced by their mean
    (`"Q"`, `"K"`, `"V"`), and that with one wire replaced, under the name of the wire.

    Notes
    -----
    Source: `studies/edition-2/study/zoo.py`, which trained them.

    Examples
    --------
    >>> sorted({entry["task"] for entry in stored_zoo()})
    ['different', 'recurring']
    """
    return stored("induction", "zoo.jsonl")


def stored_methods() -> dict[str, Any]:
    """Load the comparison of nine methods on models whose wires are known.

    Returns
    -------
    Under `"scores"`, a row for each model, seed and method with its precision at the number of
    known wires. Under `"known"`, for each model its known wires, the smallest share of the margin
    that a known wire carries, the share of all known wires together, the largest share of another
    wire, and the largest attention to the right source.

    Notes
    -----
    Source: `studies/methods/compare.py`, which computed it.

    Examples
    --------
    >>> sorted(stored_methods())
    ['known', 'scores']
    """
    return stored("induction", "methods.json")


def stored_texts() -> dict[str, Any]:
    """Load the losses of SmolLM2 on text, and where its strongest induction head attends there.

    Returns
    -------
    Under `"twice"`, the mean loss of each token of a passage of 64 tokens that comes twice, in nats.
    Under `"once"`, that of each token of 512 tokens of running text. Under `"texts"`, for each of
    seven short texts its `"tokens"` and the `"attention"` of the head, as rows of a destination, a
    source and a weight of at least 0.1; weights of the first token are left out.

    Notes
    -----
    Source: `studies/texts_of_smollm2.py`, which computed it.

    Examples
    --------
    >>> stored_texts()["head"]
    'L18H6'
    """
    return stored("induction", "smollm2-texts.json")


def stored_matches() -> dict[str, Any]:
    """Load how many tokens the induction heads of SmolLM2 match.

    Returns
    -------
    For `"SmolLM2"` and for the `"two-layer"` model of the book, by how many places before the last
    token one token was replaced (`"0"`: none): the `"attention"` to the right source, as a mean over
    the heads, its `"standard error"` over the rows, that of each of the `"heads"`, and the `"accuracy"`.

    Notes
    -----
    Source: `studies/matches_of_smollm2.py`, which computed it.

    Examples
    --------
    >>> stored_matches()["rows"]
    32
    """
    return stored("induction", "smollm2-matches.json")
