"""The grammar of names: printed and read, in order, completed, and helpful when a name is not known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit.anatomy import join, read
from circuitkit.anatomy._address import WORDS, Address, complete, nearest, unknown

number = st.integers(0, 10_000)
inputs = st.sampled_from([None, "Q", "K", "V"])
parts = st.one_of(
    st.tuples(st.sampled_from(WORDS)),
    st.tuples(st.just("H"), number, number, st.none(), inputs),
    st.tuples(st.just("N"), number, number, st.none() | number, inputs),
    st.tuples(st.just("MLP"), number, st.none(), st.none(), inputs),
    st.tuples(st.sampled_from(["bias", "MLP bias"]), number),
)


@settings(deadline=None)
@given(st.lists(parts, min_size=1, max_size=4))
def test_what_is_printed_is_read(chain):
    chain = [Address(*part) for part in chain]
    text = join(*chain)
    assert read(text) == tuple(chain)
    assert join(*read(text)) == text


@settings(deadline=None)
@given(parts, parts)
def test_two_parts_have_two_names(one, other):
    one, other = Address(*one), Address(*other)
    assert (str(one) == str(other)) == (one == other)


def test_by_hand():
    assert read("L3N120.2") == (Address("N", 3, 120, 2),)
    assert read("L3N120.2.V") == (Address("N", 3, 120, 2, "V"),)
    assert read("L0H1->L1 MLP.Q") == (Address("H", 0, 1), Address("MLP", 1, input="Q"))
    assert read("embed -> L0H1") == (Address("embed"), Address("H", 0, 1))
    assert str(Address("MLP bias", 7)) == "L7 MLP bias"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MLP0", "L0 MLP"),
        ("pos_embed", "pos"),
        ("L0H0>L1H0", "L0H0->L1H0"),
        ("MLP0>L1H3", "L0 MLP->L1H3"),
        ("L1 MLP.gate", "L1 MLP.Q"),
        ("pos_embed->L1H0.K", "pos->L1H0.K"),
    ],
)
def test_spellings_of_version_0_1_are_read_and_not_printed(old, new):
    assert join(*read(old)) == new


@pytest.mark.parametrize(
    "text",
    [
        "",
        "L1",
        "H3",
        "L1H",
        "l1h3",
        "L1H3.q",
        "L1H3.QK",
        "L1N2.x",
        "L1H2.0",
        "L1 bias.2",
        "L0H1->",
        "MLP",
    ],
)
def test_what_is_no_name_is_refused(text):
    with pytest.raises(ValueError, match="a name|is no name of a part"):
        read(text)


@pytest.mark.usefixtures("as_a_reader")
def test_no_string_is_refused():
    with pytest.raises(ValueError, match="read got text=3; expected a name"):
        read(3)


def test_order_is_that_of_the_model():
    names = [
        "embed",
        "pos",
        "L0H0",
        "L0H2",
        "L0H10",
        "L0 bias",
        "L0N1",
        "L0N1.0",
        "L0N1.1",
        "L0N12",
        "L0 MLP",
        "L0 MLP bias",
    ]
    names += ["L1H0", "L1H0.Q", "L1H0.K", "L1H0.V", "L1 bias", "L10H0", "unembed"]
    assert sorted(reversed(names), key=lambda name: read(name)[0].order) == names


def test_completion():
    known = ["embed", "L0H0", "L1H1", "L1H0", "L1 MLP", "L10H0"]
    assert complete("L1", known) == ["L1H0", "L1H1", "L1 MLP", "L10H0"]
    assert complete("L0H0->L1H", known) == ["L0H0->L1H0", "L0H0->L1H1"]
    assert complete("", known, most=2) == ["embed", "L0H0"]


def test_the_nearest_names():
    known = ["embed", "pos", *(f"L{i}H{j}" for i in range(3) for j in range(4)), "L2 MLP"]
    assert nearest("L2H7", known) == ["L2H3", "L2H2", "L2H1"]
    assert nearest("L9H1", known, 1) == ["L2H1"]
    assert nearest("L0 MLP", known, 1) == ["L2 MLP"]
    assert nearest("embd", known, 1) == ["embed"]
    assert "no head is called 'L2H7'; the nearest of 15 are L2H3, L2H2, L2H1" in str(
        unknown("head", "L2H7", known)
    )
