"""Every public name says what it computes, in which shapes, and where it comes from."""

import importlib
import inspect
import re

import pytest

import circuitkit
from tools.check.public_names import records

PACKAGES = ("anatomy", "models", "residual", "circuits", "induction", "conversion", "superposition")
SHAPE = re.compile(r"\[[\w .,+*{}^-]*\]|\*\*Shapes\*\*|\bd_model\b|\bscalar\b")
SOURCE = re.compile(r"\*\*Source\*\*: \S")


def public() -> dict[str, object]:
    """Every public function and class of the library, by the name that a reader types."""
    found = {name: getattr(circuitkit, name) for name in circuitkit.__all__}
    for package in PACKAGES:
        module = importlib.import_module(f"circuitkit.{package}")
        found |= {f"{package}.{name}": getattr(module, name) for name in module.__all__}
        found |= {f"{package}.{kind.__name__}": kind for kind in records().get(module.__name__, ())}
    return {name: value for name, value in found.items() if callable(value)}


def annotations(value) -> str:
    """The types that the page shows: of a class its fields, of a function its arguments and its result."""
    if inspect.isclass(value):
        return " ".join(map(str, getattr(value, "__annotations__", {}).values()))
    return str(inspect.signature(value))


def lacks(value) -> list[str]:
    """What the docstring does not say."""
    text, missing = inspect.getdoc(value) or "", []
    first = text.split("\n\n")[0]
    if len(first.split()) < 3 or not first.rstrip().endswith((".", ":", "`")):
        missing.append("a first sentence that says what it is or computes")
    if len(SOURCE.findall(text)) != 1:
        missing.append(f"one **Source**: (it has {len(SOURCE.findall(text))})")
    types = annotations(value)
    named = SHAPE.search(text) or re.search(r"(Float|Int|Bool|Complex)\[", types)
    if re.search(r"\bTensor\b|\bHeads\b|\bmodel\b", types) and "Tensor" in types and not named:
        missing.append("shapes: in the annotations, or as `[axis, ...]` or **Shapes** in words")
    if re.search(r"(?<![*\w])(Source|Error|Shapes): ", text):
        missing.append("the bold form: **Source**:, **Error**:, **Shapes**:")
    return missing


def test_there_are_many():
    assert len(public()) > 120


@pytest.mark.parametrize("name", public())
def test_the_docstring_is_complete(name):
    assert lacks(public()[name]) == []


def says_what(value) -> bool:
    """A formula in dollars or in backquotes, or a definition of two sentences or of eight words."""
    text = re.split(r"\*\*Source\*\*|>>>", inspect.getdoc(value) or "")[0]
    return (
        "$" in text
        or "`" in text
        or len(re.findall(r"[.:]\s", text + " ")) >= 2
        or len(text.split()) >= 8
    )


@pytest.mark.parametrize("name", public())
def test_it_is_a_formula_or_a_definition(name):
    assert says_what(public()[name])


def test_what_is_missing_is_named():
    def bare(x):
        """Adds."""

    def half(x: "torch.Tensor"):
        """The sum of a row over its columns.

        Source: nobody.
        """

    def whole(x: "torch.Tensor"):
        """The sum of each row, `[row, column]` to `[row]`. **Source**: this book."""

    assert lacks(bare) == [
        "a first sentence that says what it is or computes",
        "one **Source**: (it has 0)",
    ]
    assert [words.split(":")[0] for words in lacks(half)] == [
        "one **Source**",
        "shapes",
        "the bold form",
    ]
    assert lacks(whole) == []
