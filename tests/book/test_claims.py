"""Every row of the claims register: complete, recomputed, and with a verdict that its number supports."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from docutils.nodes import make_id

from circuitkit_book import claims, exercises
from circuitkit_book.claims.outcomes import agree, computation
from circuitkit_book.claims.register import parse

BOOK = Path(__file__).resolve().parents[2] / "book"
COMPUTED = [claim for claim in claims.load() if claim.by]
#: The five slowest computations, half of the seconds of all: weekly.
SLOW = (
    "gated.other_gates",
    "gated.low_rank_sparse",
    "notes.one_layer_fails",
    "ffn.training_hazards",
    "ffn.errors_through_layers",
)


def functions():
    for by in sorted({claim.by for claim in COMPUTED}):
        yield pytest.param(by, marks=[pytest.mark.weekly] if by in SLOW else [], id=by)


@pytest.mark.parametrize("by", [*functions()])
def test_the_stored_value_of_a_claim_is_what_is_computed_now(by):
    rows = [claim for claim in COMPUTED if claim.by == by]
    value = computation(rows[0])()
    for claim in rows:
        now = value[claim.key] if claim.key else value
        text = f"{claim.id}: now {now!r}, stored {claim.value!r}"
        assert agree(now, claim.value, claim.tolerance), text


def test_every_row_of_the_register_is_well_formed():
    assert claims.problems(claims.load()) == []


SECTIONS = {exercise.section for exercise in exercises.catalogue()}
SECTIONS |= {claim.chapter for claim in claims.load() if claim.chapter}


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_the_section_that_a_claim_or_an_exercise_names_exists(section):
    page, _, anchor = section.partition("#")
    cells = json.loads((BOOK / f"{page}.ipynb").read_text("utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    headings = [make_id(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")]
    assert anchor in headings, f"{page} has {headings}"


# --- the checker itself: sound rows pass, faulty rows are named -----------------------------------------------------

SOUND = claims.Claim(
    id="2.99",
    source="paper",
    place="Section 9",
    claim="A half is 0.5.",
    computes="A half.",
    verdict="holds",
    chapter="04-mlps-as-attention#see-it-first",
    by="paper.gelu_as_silu",
    value=[0.501, 7],
    labels=("half", "other"),
    tolerance=[1e-6, 0],
    kind=["computed", "exact"],
    said=0.5,
    said_tolerance=0.005,
)
YES = replace(SOUND, value=True, labels=(), tolerance=0, kind="exact", said=None, said_tolerance=0)
NOT = replace(YES, verdict="not checkable", note="It takes a cluster.", by="", value=None)
FAULTS = [
    (SOUND, {"place": " "}, "place is empty"),
    (SOUND, {"source": "rumour"}, "source 'rumour' is none of"),
    (SOUND, {"verdict": "maybe"}, "verdict 'maybe' is none of"),
    (SOUND, {"verdict": "caveat"}, "verdict 'caveat' needs a note"),
    (SOUND, {"chapter": ""}, "no chapter treats it, and no note says so"),
    (SOUND, {"by": ""}, "verdict 'holds' needs a computation"),
    (SOUND, {"tolerance": 0}, "a computed number needs a tolerance"),
    (SOUND, {"tolerance": [0.002, 0]}, "tolerance 0.002 is wider than 0.0015, the most for"),
    (SOUND, {"kind": "exact"}, "tolerance 1e-06 is wider than 0, the most for 'exact'"),
    (SOUND, {"said_tolerance": 0.06}, "said_tolerance 0.06 is wider than 0.05"),
    (SOUND, {"value": [0.52, 7]}, "'holds', but 0.52 is not within 0.005 of 0.5"),
    (YES, {"value": [True, False]}, "'holds', but the computed answer is no"),
    (SOUND, {"verdict": "wrong", "note": "n"}, "'wrong', but 0.501 is within 0.005 of 0.5"),
    (YES, {"verdict": "wrong", "note": "n"}, "'wrong', but the computed answer is yes"),
    (SOUND, {"note": "It is 0.77."}, "the note says 0.77, which the row does not"),
    (NOT, {"note": ""}, "verdict 'not checkable' needs a note"),
]


@pytest.mark.parametrize("claim", [SOUND, YES, NOT], ids=["number", "answer", "not checkable"])
def test_a_sound_row_passes(claim):
    assert claims.problems([claim]) == []


@pytest.mark.parametrize(("claim", "change", "message"), FAULTS)
def test_a_faulty_row_is_refused(claim, change, message):
    assert any(message in fault for fault in claims.problems([replace(claim, **change)]))


def test_two_rows_with_one_id_are_refused():
    assert "claim 2.99: 2 rows have this id" in claims.problems([SOUND, SOUND])


def test_faults_of_the_file_are_listed_together():
    text = '[[claim]]\nid = "2.1"\nverdikt = "holds"\n[[claim]]\nsource = "paper"\n'
    with pytest.raises(ValueError, match="the register cannot be read") as caught:
        parse(text)
    assert "claim 2.1: unknown field 'verdikt'" in str(caught.value)
    assert "claim in row 2: field 'id' is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected", "tolerance", "same"),
    [
        (1.0, 1.1, 0.11, True),
        (1.0, 1.1, 0.09, False),
        (1.0, 0.9, 0.09, False),
        (True, 1, 1, False),
        ("< 1e-3", "< 1e-2", 9, False),
        ([1.0, 2.0], [1.0, 2.5], [0, 0.5], True),
        ([1.0, 2.0], [1.5, 2.0], [0, 0.5], False),
        ([1.0, 2.0], [1.0], 1, False),
        (math.nan, math.nan, 1, False),
        (math.inf, math.inf, 0, True),
    ],
)
def test_values_agree_within_their_tolerance_only(value, expected, tolerance, same):
    assert agree(value, expected, tolerance) is same


def test_a_changed_value_is_reported_with_both_numbers():
    row = claims.find("2.6")
    assert claims.check(row).holds
    changed = claims.check(replace(row, value=[9, 1]))
    assert not changed.holds
    assert str(changed).startswith("claim 2.6 has drifted: recomputed 8, 1, stored 9, 1")


def test_a_missing_computation_and_an_unknown_id_are_named():
    with pytest.raises(ValueError, match="is computed by 'nowhere.half', which does not exist"):
        claims.check(replace(SOUND, by="nowhere.half"))
    with pytest.raises(ValueError, match=r"there is no claim '2\.222'.* The nearest are 2\.22"):
        claims.find("2.222")
