"""The rows of `claims.toml` as frozen values."""

import tomllib
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

SOURCES = {
    "framework": "Elhage et al. 2021, A Mathematical Framework for Transformer Circuits",
    "post-ffn": "Huben 2023, No Really, Attention is ALL You Need",
    "paper": "Huben and Morris 2023, Attention-Only Transformers and Implementing MLPs with Attention Heads",
    "notes": "A reader's notes on the framework paper (supplied with this project)",
    "post-gated": "Mathwin et al. 2024, Gated Attention Blocks",
    "after": "Later papers: He et al. 2025, Low-rank sparse attention; Jermyn et al. 2025, Progress on Attention",
}
#: The letter with which the ids of a source begin.
LETTERS = {
    "framework": "E",
    "post-ffn": "H",
    "paper": "P",
    "notes": "N",
    "post-gated": "G",
    "after": "A",
}
VERDICTS = {
    "holds": "holds",
    "holds in the source's setting": "holds in the source's setting",
    "holds without training": "holds without training",
    "too strong": "too strong",
    "wrong": "wrong",
    "misprint": "misprint",
    "definition": "definition",
    "cannot be checked here": "cannot be checked here",
}

#: Why a stored number may move: the reason, and the widest tolerance as a part of the number (or of 1, if that is more).
KINDS = {
    "exact": ("a count, a size or a setting: nothing is rounded", 0.0),
    "rounding": ("an identity in float64: processors add in another order", 1e-9),
    "single": ("the same in float32", 1e-4),
    "computed": ("a formula or a search, stored to the digits shown; no part of 1", 0.003),
    "measured": ("shares and losses of a float32 model: a near tie may fall the other way", 0.005),
    "trained": ("a model is trained at every check", 0.2),
}


@dataclass(frozen=True)
class Claim:
    """One claim of a source, in our words, with what is computed about it and our verdict."""

    id: str
    """The letter of its source and a number: `E14` for Elhage et al., `N7` for the notes; see `LETTERS`."""
    source: str
    """A key of `SOURCES`."""
    place: str
    """Where the source says it."""
    claim: str
    computes: str
    """What is computed here, in a sentence."""
    verdict: str
    """A key of `VERDICTS`."""
    chapter: str = ""
    """The page of the book that treats it: `2-qk-and-ov/what-a-head-writes`."""
    would_hold: str = ""
    """What would have to be different for the claim to hold, in one sentence; empty if it holds or is a definition."""
    note: str = ""
    """What else a reader should know about the verdict."""
    by: str = ""
    """The function that recomputes `value`: `paper.f` is `f` in `circuitkit_book/claims/paper.py`."""
    key: str = ""
    """The entry of the function's result that is this row's value, where one function serves several rows."""
    value: Any = None
    """What is computed: a number, a truth value, a text, or a list of these."""
    labels: tuple[str, ...] = ()
    """What the entries of a list are."""
    tolerance: int | float | list = 0.0
    """How far a recomputed number may lie from `value`; a list gives each entry its own."""
    kind: str | list = "exact"
    """Why it may: a key of `KINDS`, which limits the tolerance; a list gives each entry its own."""
    said: Any = None
    """What the source states, if it states a number: for the first entries of `value` where that is a longer list."""
    said_tolerance: int | float | list = 0.0
    """How near `value` must be to `said` to agree: the precision that the source prints."""
    null: Any = None
    """The same on models that have learnt nothing, or on parts that the claim does not name: for each entry of `value` the
    lowest and the highest result, or an empty list where the entry states no effect."""
    null_of: str = ""
    """What these models or parts are."""
    null_by: str = ""
    """The function that recomputes `null`: `nulls.f` is `f` in `circuitkit_book/claims/nulls.py`."""
    lab: dict[str, str] | None = None
    """The state of the lab that shows it: `text`, `model`, and what else an address of the lab may name (`state.js`)."""


def parse(text: str) -> list[Claim]:
    """Rows of a register in TOML, in order; a field that no row may have is refused by name."""
    known, rows = {field.name for field in fields(Claim)}, tomllib.loads(text).get("claim", [])
    required = {field.name for field in fields(Claim)[:6]}
    wrong = []
    for number, row in enumerate(rows, 1):
        name = f"claim {row.get('id', f'in row {number}')}"
        wrong += [
            f"{name}: unknown field {key!r}; a row has {sorted(known)}"
            for key in row.keys() - known
        ]
        wrong += [f"{name}: field {key!r} is missing" for key in sorted(required - row.keys())]
    if wrong:
        raise ValueError("the register cannot be read:\n  " + "\n  ".join(wrong))
    return [Claim(**{**row, "labels": tuple(row.get("labels", ()))}) for row in rows]


@cache
def _shipped() -> tuple[Claim, ...]:
    return tuple(parse(files("circuitkit_book.claims").joinpath("claims.toml").read_text("utf-8")))


def load() -> list[Claim]:
    """All claims, source by source."""
    return list(_shipped())


def find(id: str) -> Claim:
    """The claim with this id.

    >>> find("P2").place
    'Section 2'
    """
    claims = {claim.id: claim for claim in load()}
    if id not in claims:
        near = get_close_matches(str(id), claims, n=3, cutoff=0.3) or list(claims)[:3]
        raise ValueError(
            f"there is no claim {id!r}; ids look like 'P2'. The nearest are {', '.join(near)}"
        )
    return claims[id]
