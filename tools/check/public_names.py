"""The public names of the library and the records that its public functions return.

Public is what `circuitkit` and its packages list in `__all__`. A record is a class that a public function returns and that
is not public itself: the reference page describes it with that function.
"""

import importlib
import inspect
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Records that come out of a method, or of a function that may return one thing or another.
FURTHER = {
    "circuitkit.anatomy": ("MixedHeads",),
    "circuitkit.conversion": ("Report", "LayerReport"),
    "circuitkit.superposition": ("GatedRuns", "GatedLayer"),
}


def packages() -> list[str]:
    import circuitkit

    folder = ROOT / "src/circuitkit"
    return [
        name
        for name in circuitkit.__all__
        if (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file()
    ]


def public() -> dict[str, object]:
    """Every public name, `circuitkit.circuits.full_ov`, with what it names."""
    import circuitkit

    found = {
        f"circuitkit.{name}": getattr(circuitkit, name)
        for name in circuitkit.__all__
        if name not in packages()
    }
    for package in packages():
        module = importlib.import_module(f"circuitkit.{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            if not name.startswith("check_") and not any(
                thing is known for known in found.values()
            ):
                found[f"circuitkit.{package}.{name}"] = thing
    return found


@cache
def records() -> dict[str, list[type]]:
    """The classes that are not public and that public functions return, by the module that offers the function."""
    names = public()
    known, found = list(names.values()), {}
    for name, thing in names.items():
        function = inspect.unwrap(thing) if callable(thing) else thing
        if inspect.isfunction(function):
            module = name.rpartition(".")[0]
            kinds = [*within(inspect.signature(function).return_annotation), *further(module)]
            new = [kind for kind in dict.fromkeys(kinds) if kind not in known]
            known += new
            found.setdefault(module, []).extend(new)
    return found


def further(module: str) -> Iterator[type]:
    """The classes of FURTHER, found in the files of the package."""
    for wanted in FURTHER.get(module, ()):
        files = sorted(Path(importlib.import_module(module).__path__[0]).glob("_[a-z]*.py"))
        there = (vars(importlib.import_module(f"{module}.{path.stem}")) for path in files)
        yield next(found[wanted] for found in there if wanted in found)


def within(annotation: object) -> Iterator[type]:
    """The library's own classes in an annotation, and those in the fields of these."""
    if inspect.isclass(annotation) and annotation.__module__.startswith("circuitkit."):
        yield annotation
        for field in getattr(annotation, "__annotations__", {}).values():
            yield from (kind for kind in within(field) if kind is not annotation)
    for part in typing.get_args(annotation):
        yield from within(part)
