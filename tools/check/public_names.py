"""Count the public names of the library and say where each is used; names that nothing uses are listed.

    python -m tools public-names

Public is what `circuitkit` and its packages list in `__all__`. Packages themselves are not counted, and of the exercises not
the `check_...` that each page calls; a name offered twice counts once. A record, what a function returns and nobody makes by
hand, is not listed: the reference describes it beside the function, and its class lies in the private file of that function.
"""

import importlib
import inspect
import json
import re
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 150
#: Records that come out of a method, or of a function that may return one thing or another.
FURTHER = {
    "circuitkit.anatomy": ("MixedHeads",),
    "circuitkit.conversion": ("Report", "LayerReport"),
    "circuitkit.superposition": ("GatedRuns", "GatedLayer"),
}


def packages() -> list[str]:
    import circuitkit

    return [
        name
        for name in circuitkit.__all__
        if (ROOT / "src/circuitkit" / name / "__init__.py").is_file()
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


def places() -> dict[str, str]:
    """The code of every page, exercise and claim and of the README, and the prose of pages that are no reference."""
    found = {}
    for path in [
        *(ROOT / "book").rglob("*.ipynb"),
        *(ROOT / "book").rglob("*.md"),
        ROOT / "README.md",
    ]:
        name = str(path.relative_to(ROOT))
        if re.search(r"/[._]", name) or name.startswith("book/api"):
            continue
        text = path.read_text("utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        found[name] = text
    for room in ("claims", "exercises"):
        for path in (ROOT / "src/circuitkit" / room).glob("_[a-z]*.py"):
            found[str(path.relative_to(ROOT))] = path.read_text("utf-8")
    return found


def used(name: str, texts: dict[str, str]) -> list[str]:
    """Where a name is called, imported or linked: after a dot, before a bracket, in an import, in back-quotes."""
    last = re.escape(name.rpartition(".")[2])
    said = re.compile(rf"\.{last}\b|\b{last}\(|import [^\n]*\b{last}\b|`{last}[`(]|`{last} <", re.M)
    return [place for place, text in texts.items() if said.search(text)]


def unused() -> list[str]:
    texts = places()
    return [name for name in public() if not used(name, texts)]


def main() -> int:
    names, texts = public(), places()
    for name in sorted(names):
        print(f"{name:<58} {', '.join(used(name, texts)[:3]) or '-- nowhere'}")
    behind = sum(map(len, records().values()))
    print(
        f"{len(names)} public names, at most {MOST}; {len(unused())} are used nowhere; {behind} records behind them"
    )
    return int(len(names) > MOST or bool(unused()))


if __name__ == "__main__":
    sys.exit(main())
