"""The grammar of names: what is read is printed again, and what is wrong is explained."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from circuitkit.names import Name, join, nearest, parse, unknown

NAMES = [
    "embed",
    "pos",
    "L3H5",
    "L3 bias",
    "L3 MLP",
    "L3N120",
    "L3N120.2",
    "L3 MLP bias",
    "L1H3.K",
    "L1 MLP.Q",
    "L1N5.1.V",
    "L0H1->L1H3.K",
    "embed->L0H1.V->L1H3",
]


@pytest.mark.parametrize("text", NAMES)
def test_a_name_is_printed_as_it_was_read(text):
    assert join(*parse(text)) == text


def test_fields_of_a_name():
    assert parse("L1N5.2.V") == (Name("N", 1, 5, 2, "V"),)
    assert parse("pos_embed") == (Name("pos"),)
    assert [name.part for name in parse("L1H3.K")] == [Name("H", 1, 3)]


@given(st.integers(0, 99), st.integers(0, 99), st.sampled_from([None, "Q", "K", "V"]))
def test_heads_go_there_and_back(layer, number, side):
    name = Name("H", layer, number, side=side)
    assert parse(str(name)) == (name,)


def test_parts_of_a_layer_are_ordered_by_number():
    names = ["L0H10", "L0 bias", "L0H2", "L0N3.1", "L0N3.0"]
    ordered = sorted(names, key=lambda text: parse(text)[0].order)
    assert ordered == ["L0H2", "L0H10", "L0N3.0", "L0N3.1", "L0 bias"]


@pytest.mark.parametrize(
    "text", ["", "L1", "H3", "L1H3.", "L1H3.k", "L0H1>>L1H3", "L1H-1", "L1MLP"]
)
def test_what_is_no_name_is_explained(text):
    with pytest.raises(ValueError, match="is no name of a part. Write a name such as 'embed'"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "nearest_name"),
    [
        ("L0H01", "L0H1"),
        ("L01H1", "L1H1"),
        ("embed->L0H00.V->L1H3", "L0H0.V"),
        ("L0N3.02", "L0N3.2"),
    ],
)
def test_a_number_with_a_zero_in_front_is_refused_with_the_right_name(text, nearest_name):
    with pytest.raises(ValueError, match=f"Write '{nearest_name}' in place of"):
        parse(text)


def test_the_nearest_names_are_offered():
    known = ["embed", "L0H0", "L1H0", "L1H3", "L1 MLP"]
    assert nearest("L1H9", known, 1) == ["L1H3"]
    assert nearest("embe", known, 1) == ["embed"]
    assert "nearest names are L1H3" in str(unknown("part", "L1H9", known))
