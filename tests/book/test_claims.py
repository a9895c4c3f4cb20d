"""Every row of the register: complete, recomputed, and a verdict that its number bears out."""

import importlib
import inspect
import json
from pathlib import Path

import pytest
from docutils.nodes import make_id

from circuitkit import claims
from circuitkit.claims._check import agree, computation

BOOK = Path(__file__).resolve().parents[2] / "book"
COMPUTED = [claim for claim in claims.load() if claim.by]
FUNCTIONS = sorted({claim.by for claim in COMPUTED})
MODULES = sorted({name.partition(".")[0] for name in FUNCTIONS})


def test_the_register_is_sound():
    assert claims.problems(claims.load()) == []


@pytest.mark.parametrize("by", FUNCTIONS)
def test_recomputed_values_are_the_stored_ones(by):
    rows = [claim for claim in COMPUTED if claim.by == by]
    value = computation(rows[0])()
    for claim in rows:
        now = value[claim.key] if claim.key else value
        assert agree(now, claim.value, claim.tolerance), (
            f"{claim.id}: now {now!r}, stored {claim.value!r}"
        )


def test_no_computation_is_unused():
    defined = set()
    for name in MODULES:
        module = importlib.import_module(f"circuitkit.claims._{name}")
        own = [
            f
            for _, f in inspect.getmembers(module, inspect.isfunction)
            if f.__module__ == module.__name__
        ]
        defined |= {f"{name}.{f.__name__}" for f in own if not f.__name__.startswith("_")}
    assert defined - set(FUNCTIONS) == set()


@pytest.mark.parametrize(
    "claim", [claim for claim in claims.load() if claim.chapter], ids=lambda claim: claim.id
)
def test_the_chapter_has_the_heading(claim):
    page, _, anchor = claim.chapter.partition("#")
    assert anchor in headings(page), f"{page} has {headings(page)}"


def headings(page: str) -> list[str]:
    notebook = json.loads((BOOK / f"{page}.ipynb").read_text("utf-8"))
    text = "\n".join(
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"
    )
    return [make_id(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")]
