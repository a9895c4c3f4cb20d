"""The tests check every annotation of the library, with or without arrays in it."""

from dataclasses import dataclass

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tests.support.checked_shapes import checked, names_sizes

Rows = Float[Tensor, "rows d"]


def product(x: Rows, y: Float[Tensor, "d columns"]) -> Float[Tensor, "rows columns"]:
    return x @ y


def transposed(x: Rows) -> Float[Tensor, "rows d"]:
    return x.T


def named(tables: dict[str, list[Rows | None]]) -> int:
    return len(tables)


def counted(names: list[str], n: int = 1) -> int:
    return n if names else None


def quoted(names: "list[str]") -> "int":
    return len(names)


@dataclass
class Pair:
    x: Rows
    y: Rows


x = torch.zeros(2, 3)


def test_where_sizes_are_named_they_have_to_agree():
    assert checked(product)(x, x.T).shape == (2, 2)
    with pytest.raises(TypeCheckError):
        checked(product)(x, x)
    with pytest.raises(TypeCheckError):
        checked(transposed)(x)
    with pytest.raises(TypeCheckError):
        checked(Pair)(x, x.T)


@pytest.mark.parametrize(
    ("function", "has_them"), [(product, True), (named, True), (counted, False), (quoted, False)]
)
def test_sizes_are_found_however_deep(function, has_them):
    assert names_sizes(function) == has_them


def test_where_no_size_is_named_types_are_checked_all_the_same():
    assert checked(counted)(["a"]) == 1
    for names, n in ([1], 1), (["a"], "1"), ([], 1):  # the last returns no number
        with pytest.raises(BeartypeCallHintViolation):
            checked(counted)(names, n)
    with pytest.raises(BeartypeCallHintViolation):
        checked(quoted)([1])


def made(k):
    """Functions made anew at each call, one without sizes and one with them."""

    def plus(n: int, *, more: int = k) -> int:
        return n + k + more if n >= 0 else "less"

    def times(x: Rows) -> Rows:
        return k * x if k else x.T

    return checked(plus), checked(times)


def test_a_function_within_a_function_is_checked_each_time_and_is_itself():
    (plus, times), (plus_2, times_2), (_, turned) = made(1), made(2), made(0)
    assert (plus(0), plus_2(0), plus(0, more=5), plus_2(1)) == (2, 4, 6, 5)
    assert (times(x + 1).sum(), times_2(x + 1).sum()) == (6, 12)
    assert plus.__wrapped__ is not plus_2.__wrapped__
    for one in plus, plus_2:
        for wrong in "1", -1:
            with pytest.raises(BeartypeCallHintViolation):
                one(wrong)
    for wrong in (lambda: times_2(x[0]), lambda: turned(x)):
        with pytest.raises(TypeCheckError):
            wrong()
    assert plus(0) == 2


def test_one_that_calls_another_of_its_kind_is_itself_again_afterwards():
    def deep(k):
        def inner(n: int) -> int:
            return n if k == 0 else deep(k - 1)(n) + 10 * k + deep(0)(0)

        return checked(inner)

    assert deep(3)(1) == 61


@pytest.mark.usefixtures("as_a_reader")
def test_a_reader_is_checked_by_the_door_alone():
    assert checked(counted)([]) is None
    assert checked(transposed)(x).shape == (3, 2)


def test_the_library_is_watched():
    from circuitkit.anatomy import _address
    from circuitkit.circuits import _full

    for module in (_address, _full):
        own = [
            value
            for value in vars(module).values()
            if getattr(value, "__module__", None) == module.__name__
        ]
        functions = [value for value in own if callable(value) and not isinstance(value, type)]
        assert functions
        assert all(hasattr(function, "__wrapped__") for function in functions)
