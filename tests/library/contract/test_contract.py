"""The contract by itself: what each kind takes, and in which words it refuses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit import _contract as contract
from circuitkit._contract import (
    AS_IT_IS,
    Count,
    Finite,
    Fraction,
    HeadName,
    HeadNames,
    Natural,
    kind,
    must,
    one_dtype,
    public,
)
from tests.support.fuzz import KINDS

pytestmark = pytest.mark.usefixtures("as_a_reader")
NAN, INF = float("nan"), float("inf")


def door(hint):
    """A public function with one argument of this annotation."""

    def f(x=None):
        return x

    f.__annotations__ = {"x": hint}
    return public(f)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_accepts_right_values_and_refuses_wrong_ones(name):
    f = door(getattr(contract, name))
    good, bad = KINDS[name]
    for value in good:
        assert f(value) is value or f(value) == value
    for value in [v for v in bad if v is not None]:
        with pytest.raises(ValueError, match="f got x.*; expected "):
            f(value)


def test_every_kind_is_tried():
    kinds = {
        name
        for name, value in vars(contract).items()
        if type(value).__name__ == "_AnnotatedAlias" and not name.startswith("_")
    }
    by_models = {
        "Model",
        "AnyModel",
        "HasHeads",
        "Factored",
        "Figure",
        "Cache",
    }  # the fuzz has them
    assert kinds - by_models == set(KINDS)


WORDS = {
    "a number": (
        Count,
        -1,
        "f got x=-1; expected an integer of at least 1, because it counts something. Write for example x=8.",
    ),
    "none or a number": (
        Count | None,
        "a",
        "f got x='a'; expected an integer of at least 1 or None, because it counts something. Write for example x=8.",
    ),
    "a choice": (
        Literal["Q", "K"],
        "V",
        "f got x='V'; expected one of ['Q', 'K'], because nothing else is defined. Write x='Q'.",
    ),
    "a flag": (
        bool,
        1,
        "f got x=1; expected True or False, because it switches something on or off. Write x=True.",
    ),
    "a class": (dict, [], "f got x=[]; expected a dict."),
    "a list for ids": (
        Int[Tensor, "batch pos"],
        [1],
        "f got x as a list; expected a torch tensor of integers [batch, pos], because it is computed with position by position. "
        "Write torch.tensor([ids]) for a list, model.to_tokens(text) for text.",
    ),
    "one row": (
        Int[Tensor, "batch pos"],
        torch.tensor([1, 4]),
        "f got x of shape (2,), torch.int64, from 1 to 4; expected a torch tensor of integers [batch, pos], because axes of one name "
        "have one size. Bring it to that shape. One row is x[None].",
    ),
    "floats for ids": (
        Int[Tensor, "pos"],
        torch.ones(2),
        "f got x of shape (2,), torch.float32; expected a torch tensor of integers [pos], because other numbers mean something else "
        "here. Write x.long() if they are what is meant.",
    ),
    "NaN": (
        Float[Tensor, "pos"],
        torch.tensor([NAN]),
        "f got x of shape (1,), torch.float32, with NaN or infinite entries; expected finite numbers, because no result would mean "
        "anything. Look where they come from.",
    ),
    "pairs": (
        tuple[Count, Count],
        (1, 0),
        "f got x=(1, 0); expected 2 of them, each an integer of at least 1, because it counts something.",
    ),
    "a long thing": (
        Count,
        [0] * 90,
        "f got x as a list; expected an integer of at least 1, because it counts something. Write for example x=8.",
    ),
    "a type": (
        Count,
        dict,
        "f got x=dict; expected an integer of at least 1, because it counts something. Write for example x=8.",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_words(name):
    hint, value, words = WORDS[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        door(hint)(value)
    assert str(caught.value) == words


@public
def product(
    x: Float[Tensor, "row inner"], y: Float[Tensor, "inner column"], *, k: Count = 1
) -> Tensor:
    return (x @ y)[:k]


def test_axes_of_one_name_are_equal():
    assert product(torch.ones(2, 3), torch.ones(3, 4)).shape == (1, 4)
    with pytest.raises(
        ValueError, match=r"product got y of shape \(2, 4\).* \[inner, column\] with inner=3"
    ):
        product(torch.ones(2, 3), torch.ones(2, 4))
    assert product(torch.ones(2, 5), torch.ones(5, 4)).shape == (1, 4)  # every call begins anew


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ValueError, match=r"product got x as a list.*\nproduct got k=0"):
        product([1.0], torch.ones(3, 4), k=0)


def test_arguments_that_are_missing_or_too_many():
    with pytest.raises(
        TypeError,
        match=r"product could not take these arguments: missing a required argument: 'y'. Write product\(x, y, \*, k=",
    ):
        product(torch.ones(2, 3))
    with pytest.raises(TypeError, match="an unexpected keyword argument 'j'"):
        product(torch.ones(2, 3), torch.ones(3, 4), j=1)
    with pytest.raises(TypeError, match="too many positional arguments. Write product"):
        product(torch.ones(2, 3), torch.ones(3, 4), 1)


def test_integers_arrive_as_int64_and_lists_as_tuples():
    f = door(Int[Tensor, "pos"])
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        assert f(torch.ones(3, dtype=dtype)).dtype == torch.int64
    with pytest.raises(ValueError, match=r"torch.bool; expected a torch tensor of integers"):
        f(torch.ones(3, dtype=torch.bool))
    assert door(tuple[Count, ...])([1, 2]) == (1, 2)
    assert type(door(Count)(np.int16(3))) is int


def test_nan_gets_through_where_that_is_said():
    assert door(Annotated[Float[Tensor, "pos"], AS_IT_IS])(torch.tensor([NAN])).isnan().all()
    with pytest.raises(ValueError, match="expected a torch tensor"):
        door(Annotated[Float[Tensor, "pos"], AS_IT_IS])(torch.ones(2, 2))


def test_every_item_of_a_sequence_is_asked():
    """beartype asks one item at random."""
    f = door(Sequence[Natural])
    for place in range(40):
        items = [1] * 40
        items[place] = -1
        with pytest.raises(
            ValueError, match="expected a list or tuple, each entry an integer of at least 0"
        ):
            f(items)
    assert f([0] * 40) == [0] * 40
    with pytest.raises(ValueError, match="expected a list or tuple, each entry a text"):
        door(Sequence[str])("text")
    assert door(str | Sequence[int])("text") == "text"


def test_a_truth_value_is_no_integer_even_where_no_kind_says_so():
    with pytest.raises(ValueError, match="got x=True"):
        door(int)(True)


@public
@must(lambda k, n: k <= n or f"k of at most {n}")
@must(lambda n, k: n != 7 or "another n")
@one_dtype("x", "y")
def related(
    k: Natural | None,
    n: Count,
    x: Float[Tensor, "a"] | None = None,
    y: Float[Tensor, "a"] | None = None,
) -> int:
    return n


def test_rules():
    assert related(2, 3) == 3
    with pytest.raises(ValueError, match=r"^related got k=4, n=3; expected k of at most 3\.$"):
        related(4, 3)
    with pytest.raises(
        ValueError,
        match=r"^related got k=8, n=7; expected k of at most 7\.\nrelated got n=7, k=8; expected another n\.$",
    ):
        related(8, 7)
    assert related(None, 3) == 3  # nothing is asked about a first argument that is None
    with pytest.raises(
        ValueError,
        match="x of shape .*float32, y of shape .*float64; expected one dtype on one device",
    ):
        related(1, 3, torch.ones(2), torch.ones(2).double())
    with pytest.raises(
        ValueError, match=r"^related got k=-1; expected an integer of at least 0 or None"
    ):
        related(-1, 7)  # values first, what holds between them after


@public
@must(lambda low, high: low < high or "low below high")
@must(lambda x, self: x <= self.high or "no more than high")
@dataclass(frozen=True)
class Range:
    low: Finite
    high: Finite = 1.0

    def at(self, x: Fraction) -> float:
        return self.low + x * (self.high - self.low)

    def clip(self, x: Finite) -> float:
        return max(x, self.low)

    def _private(self, x: Count) -> int:
        return x


@public
class Pair(NamedTuple):
    a: int
    b: int

    def pick(self, k: Natural = 0) -> int:
        return self[k]


def test_classes_are_guarded_at_constructor_and_methods():
    made = Range(0.0, 2)
    assert made.at(0.5) == 1
    with pytest.raises(ValueError, match="^Range got low='a'; expected a finite number"):
        Range("a")
    with pytest.raises(ValueError, match="^Range got low=3, high=2; expected low below high"):
        Range(3, 2)
    with pytest.raises(ValueError, match=r"^Range\.at got x=1.5; expected a number from 0 to 1"):
        made.at(1.5)
    with pytest.raises(ValueError, match=r"^Range\.clip got x=5; expected no more than high"):
        made.clip(5)
    assert made._private(-1) == -1
    assert Pair(1, 2).pick() == 1
    with pytest.raises(ValueError, match=r"^Pair\.pick got k=True"):
        Pair(1, 2).pick(True)


def test_several_arguments_of_one_kind():
    @public
    def total(*parts: Count) -> int:
        return sum(parts)

    assert total(1, 2) == 3
    with pytest.raises(ValueError, match="total got parts=0.*\ntotal got parts=-1"):
        total(1, 0, -1)


def test_what_is_not_promised_is_not_checked():
    def f(x, y: Any = None, z: "Nowhere" = 3):
        return x, y, z

    assert public(f)(1, 2, "z") == (1, 2, "z")


def test_a_default_is_not_checked():
    @public
    def f(x: Count = 0) -> int:
        return x

    assert f() == f(0) == 0


def test_a_kind_of_ones_own():
    Even = Annotated[
        int, kind(lambda n: n % 2 == 0, "an even number", "pairs are made", "Write {name}=2.")
    ]
    assert door(Even | None)(4) == 4
    with pytest.raises(
        ValueError,
        match="f got x=3; expected an even number or None, because pairs are made. Write x=2.",
    ):
        door(Even | None)(3)


def test_one_name_for_a_head():
    assert door(HeadName)("L0H1") == "L0H1"
    with pytest.raises(
        ValueError,
        match="expected one name or number, because one head is asked about. Write 'L0H0'",
    ):
        door(HeadName)(["L0H1"])
    with pytest.raises(ValueError, match="a name, a number among all heads, or a list of these"):
        door(HeadNames)([None])


def test_truth_values_of_a_mask():
    with pytest.raises(ValueError, match=r"tensor of truth values \[pos\].*x.bool\(\)"):
        door(Bool[Tensor, "pos"])(torch.ones(2))
