"""The checker itself: a sound row passes; a drifted value, a missing computation and an untrue verdict are refused."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from circuitkit import claims
from circuitkit.claims._check import agree, shown
from circuitkit.claims._numbers import below
from circuitkit.claims._register import parse

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

FAULTS = {
    "no place": (SOUND, {"place": " "}, "place is empty"),
    "no claim": (SOUND, {"claim": ""}, "claim is empty"),
    "no computes": (SOUND, {"computes": ""}, "computes is empty"),
    "unknown source": (SOUND, {"source": "rumour"}, "source 'rumour' is none of"),
    "id of another source": (SOUND, {"id": "3.99"}, "ids of 'paper' start with '2.'"),
    "unknown verdict": (SOUND, {"verdict": "maybe"}, "verdict 'maybe' is none of"),
    "caveat without a note": (SOUND, {"verdict": "caveat"}, "verdict 'caveat' needs a note"),
    "nowhere in the book": (SOUND, {"chapter": ""}, "no chapter treats it, and no note says so"),
    "no computation": (SOUND, {"by": ""}, "verdict 'holds' needs a computation"),
    "no value": (SOUND, {"value": None, "labels": ()}, "needs a computation (by) and its value"),
    "by without a module": (SOUND, {"by": "gelu"}, "by 'gelu' is not 'module.function'"),
    "float without a tolerance": (SOUND, {"tolerance": 0}, "a computed number needs a tolerance"),
    "tolerance of an answer": (YES, {"tolerance": 0.1}, "only numbers have a tolerance"),
    "a kind too few": (
        SOUND,
        {
            "value": [*SOUND.value, 1.0],
            "labels": (*SOUND.labels, "more"),
            "said": None,
            "said_tolerance": 0,
        },
        "2 entries of kind for 3 values; expected one, or one for each",
    ),
    "a tolerance too few": (
        SOUND,
        {
            "value": [*SOUND.value, 1.0],
            "labels": (*SOUND.labels, "more"),
            "kind": "computed",
            "said": None,
            "said_tolerance": 0,
        },
        "2 entries of tolerance for 3 values; expected one, or one for each",
    ),
    "unknown kind": (SOUND, {"kind": "vague"}, "kind 'vague' is none of ['exact', 'rounding'"),
    "wider than its kind": (
        SOUND,
        {"tolerance": [0.002, 0]},
        "tolerance 0.002 is wider than 0.0015, the most for",
    ),
    "an exact number may move": (
        SOUND,
        {"tolerance": [1e-6, 1]},
        "tolerance 1 is wider than 0, the most for",
    ),
    "no reason": (
        SOUND,
        {"kind": "exact"},
        "tolerance 1e-06 is wider than 0, the most for 'exact'",
    ),
    "said less precisely than printed": (
        SOUND,
        {"said_tolerance": 0.06},
        "said_tolerance 0.06 is wider than 0.05",
    ),
    "too few labels": (SOUND, {"labels": ("half",)}, "1 labels do not fit the value [0.501, 7]"),
    "holds and is not near": (
        SOUND,
        {"value": [0.52, 7]},
        "'holds', but 0.52 is not within 0.005 of 0.5",
    ),
    "holds and answer is no": (
        YES,
        {"value": [True, False]},
        "'holds', but the computed answer is no",
    ),
    "wrong and is near": (
        SOUND,
        {"verdict": "wrong", "note": "n"},
        "'wrong', but 0.501 is within 0.005 of 0.5",
    ),
    "wrong and answer is yes": (
        YES,
        {"verdict": "wrong", "note": "n"},
        "'wrong', but the computed answer is yes",
    ),
    "note with a number of its own": (
        SOUND,
        {"note": "It is 0.77."},
        "the note says 0.77, which the row does not",
    ),
    "not checkable and computed": (NOT, {"value": 1}, "'not checkable', and yet computed"),
    "not checkable without a reason": (NOT, {"note": ""}, "verdict 'not checkable' needs a note"),
}


@pytest.mark.parametrize("claim", [SOUND, YES, NOT], ids=["number", "answer", "not checkable"])
def test_a_sound_row_passes(claim):
    assert claims.problems([claim]) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_row_is_refused(name):
    claim, change, message = FAULTS[name]
    found = claims.problems([replace(claim, **change)])
    assert any(message in fault for fault in found), found
    assert all(fault.startswith("claim ") for fault in found)


@pytest.mark.parametrize(
    ("kind", "value", "widest"),
    [
        ("exact", 7.0, 0.0),
        ("rounding", 0.0, 1e-9),
        ("rounding", 50.0, 5e-8),
        ("measured", -0.2, 0.005),
    ]
    + [
        ("measured", 6.0, 0.03),
        ("computed", 0.02, 6e-5),
        ("trained", 1.0, 0.2),
        ("single", 0.0, 1e-4),
    ],
)
def test_each_kind_has_a_widest_tolerance(kind, value, widest):
    row = replace(SOUND, value=value, labels=(), said=None, said_tolerance=0, kind=kind)
    assert claims.problems([replace(row, tolerance=widest)]) == []
    assert "is wider than" in claims.problems([replace(row, tolerance=1.01 * widest + 1e-12)])[0]


@pytest.mark.parametrize(
    ("said", "half"), [(500, 50), (20, 5), (1.278, 5e-4), (0.5, 0.05), (1e-14, 5e-15)]
)
def test_a_text_is_compared_to_half_a_unit_of_its_last_digit(said, half):
    row = replace(SOUND, value=said, said=said, labels=(), tolerance=0, kind="exact")
    assert claims.problems([replace(row, said_tolerance=half)]) == []
    assert "said_tolerance" in claims.problems([replace(row, said_tolerance=1.1 * half)])[0]


@pytest.mark.parametrize(
    "note", ["It is 0.50.", "Claim 2.20 says more.", "A half is 0.5.", "Seven: 7.0."]
)
def test_a_note_may_round_what_the_row_computes(note):
    assert claims.problems([replace(SOUND, note=note)]) == []


@pytest.mark.parametrize("note", ["It is 0.51.", "It is 0.5011."])
def test_a_note_may_not_round_wrongly(note):
    assert len(claims.problems([replace(SOUND, note=note)])) == 1


def test_said_as_a_list_is_compared_entry_by_entry():
    both = replace(SOUND, value=[0.501, 7.3], said=[0.5, 7], said_tolerance=[0.005, 0.5])
    assert claims.problems([both]) == []
    assert "is not within" in claims.problems([replace(both, said_tolerance=[0.005, 0.2])])[0]


def test_two_rows_with_one_id_or_one_value_are_refused():
    assert claims.problems([SOUND, SOUND]) == [
        "claim 2.99: 2 rows have this id",
        "2 rows show the same value, paper.gelu_as_silu",
    ]
    assert claims.problems([SOUND, replace(SOUND, id="2.98", key="other")]) == []


def test_what_cannot_be_checked_is_capped():
    many = [replace(NOT, id=f"2.{i}") for i in range(9)]
    assert claims.problems(many[:8]) == []
    assert claims.problems(many) == ["9 claims are 'not checkable'; at most 8 may be"]


@pytest.fixture
def computed(monkeypatch):
    """A row whose computations are here, so that nothing heavy is imported: `half` and a function for several rows."""
    made = SimpleNamespace(half=lambda: [0.501, 7], several=lambda: {"near": 1, "far": 2})
    monkeypatch.setitem(sys.modules, "circuitkit.claims._made", made)
    return replace(SOUND, by="made.half")


def test_the_stored_value_holds_and_a_drifted_one_is_named(computed):
    text = "claim 2.99 holds: recomputed 0.501, 7, stored 0.501, 7"
    assert claims.check(computed) == ("2.99", True, [0.501, 7], [0.501, 7], text)
    drifted = claims.check(replace(computed, value=[0.502, 7]))
    assert not drifted.holds
    assert str(drifted).startswith(
        "claim 2.99 has drifted: recomputed 0.501, 7, stored 0.502, 7; the tolerance is 1e-06"
    )


@pytest.mark.parametrize("by", ["made.no_such", "nowhere.half", "half"])
def test_a_missing_computation_is_named(by, computed):
    with pytest.raises(
        ValueError,
        match=f"claim 2.99 is computed by '{by}', which does not exist; expected 'module",
    ):
        claims.check(replace(computed, by=by))


def test_what_is_not_checkable_says_why():
    with pytest.raises(
        ValueError, match="claim 4.10 is not checkable: They are the post's own account"
    ):
        claims.recompute("4.10")


def test_a_key_picks_an_entry_and_a_wrong_key_is_named(computed):
    claim = replace(computed, by="made.several", key="far")
    assert claims.recompute(claim) == 2
    with pytest.raises(
        ValueError, match=r"claim 2.99: made.several has no entry 'no'; it has \['far', 'near'\]"
    ):
        claims.recompute(replace(claim, key="no"))


def test_an_unknown_id_names_the_nearest():
    with pytest.raises(
        ValueError,
        match=r"there is no claim '2\.222'; ids look like '2\.2'\. The nearest are 2\.22",
    ):
        claims.find("2.222")


def test_load_gives_a_list_of_its_own():
    claims.load().clear()
    assert len(claims.load()) > 100


def test_faults_of_the_file_are_listed_together():
    text = '[[claim]]\nid = "2.1"\nverdikt = "holds"\n[[claim]]\nsource = "paper"\n'
    with pytest.raises(ValueError, match="the register cannot be read") as caught:
        parse(text)
    message = str(caught.value)
    assert "claim 2.1: unknown field 'verdikt'" in message
    assert "claim 2.1: field 'verdict' is missing" in message
    assert "claim in row 2: field 'id' is missing" in message


@pytest.mark.parametrize(
    ("value", "expected", "tolerance", "same"),
    [
        (1.0, 1.1, 0.11, True),
        (1.0, 1.1, 0.09, False),
        (1.0, 0.9, 0.09, False),
        (1, 1.0, 0, True),
        (True, 1, 1, False),
        (True, True, 0, True),
        ("< 1e-3", "< 1e-3", 0, True),
        ("< 1e-3", "< 1e-2", 9, False),
        ([1.0, 2.0], [1.0, 2.5], [0, 0.5], True),
        ([1.0, 2.0], [1.5, 2.0], [0, 0.5], False),
        ([1.0, 2.0], [1.0], 1, False),
        ([1.0, 2.0], [1.0, 2.0], [1], False),
        ((1, True), [1, True], 0, True),
        (math.nan, math.nan, 1, False),
        (math.inf, math.inf, 0, True),
    ],
)
def test_agreement(value, expected, tolerance, same):
    assert agree(value, expected, tolerance) is same


def test_values_in_words():
    assert shown([True, 0.02033526, 3, "< 1e-3", [False]]) == "yes, 0.0203353, 3, < 1e-3, no"


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (3e-5, "< 1e-4"),
        (1e-4, "< 1e-3"),
        (0.2, "< 1e0"),
        (4.0, "< 1e1"),
        (0.0, "< 1e-299"),
        (math.nan, "not a number"),
    ],
)
def test_powers_of_ten(x, text):
    assert below(x) == text


def test_a_row_of_the_register_is_checked_by_its_id():
    assert claims.check("2.6") == (
        "2.6",
        True,
        [8, 1],
        [8, 1],
        "claim 2.6 wrong: recomputed 8, 1, stored 8, 1",
    )
