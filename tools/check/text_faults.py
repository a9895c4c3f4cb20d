"""Plant slips of the pen in the pages' text, one at a time, and say how many the checks of the prose notice.

    python -m tools text-faults            every fault of tests/prose/text_faults.toml
    python -m tools text-faults FILE ...   other lists of the same form: [[fault]] with kind, page, old and new

A fault is noticed by a *value* where something computed no longer agrees (a binding of book/numbers.toml, an equation, a
rule of the claims register), and otherwise by the *list* of statements, which knows only that a statement changed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tools.check import prose_numbers, statements
from tools.check.prose_numbers import ROOT

FAULTS = ROOT / "tests" / "prose" / "text_faults.toml"
LEAST = 0.8  # of all faults must be noticed


class Fault(NamedTuple):
    """`old` becomes `new`, once, in the text of `page`."""

    kind: str
    page: str
    old: str
    new: str


def read(paths: list[Path]) -> list[Fault]:
    return [Fault(**row) for path in paths for row in tomllib.loads(path.read_text("utf-8"))["fault"]]


def place(fault: Fault, root: Path) -> Path:
    return root / statements.CLAIMS if fault.page == "claims.toml" else prose_numbers.pages(root)[fault.page]


def plant(fault: Fault, text: str, suffix: str) -> str:
    """The text with the fault in it; in a notebook a Markdown cell has it."""
    if suffix != ".ipynb":
        if text.count(fault.old) != 1:
            raise ValueError(f"{fault.page}: {fault.old!r} is there {text.count(fault.old)} times; expected once")
        return text.replace(fault.old, fault.new)
    book = json.loads(text)
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "markdown"]
    there = [cell for cell in cells if fault.old in "".join(cell["source"])]
    if len(there) != 1 or "".join(there[0]["source"]).count(fault.old) != 1:
        raise ValueError(f"{fault.page}: {fault.old!r} is in {len(there)} cells; expected once in one")
    there[0]["source"] = "".join(there[0]["source"]).replace(fault.old, fault.new)
    return json.dumps(book)


def noticed(fault: Fault, root: Path, before: set[str] | None) -> str:
    """`value`, `list` or nothing: who notices the fault that stands in the copy `root`; only the list without `before`."""
    if before is None:
        found = []
    elif fault.page == "claims.toml":
        from circuitkit.claims import problems
        from circuitkit.claims._register import parse

        found = problems(parse(place(fault, root).read_text("utf-8")))
    else:
        found = wrong_equations(fault, root) or set(prose_numbers.problems(root)) - before
    return "value" if found else "list" if statements.differences(root) else ""


def wrong_equations(fault: Fault, root: Path) -> list[str]:
    """Numbered equations of the page that the fault changed and that no longer hold."""
    from tests.prose import test_equation_values as values

    now, found = values.equations(root / "book"), []
    for number, latex in values.equations().items():
        if now.get(number) != latex:
            try:
                values.TIES[number](now[number])
            except Exception as problem:  # a changed formula may fail to be read, to be computed, or to agree
                found.append(f"({number}): {problem}")
    return found


def copy(root: Path) -> None:
    for path in (*ROOT.glob("book/**/*.ipynb"), *ROOT.glob("book/**/*.md"), *ROOT.glob("*.md")):
        (root / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, root / path.relative_to(ROOT))
    for name in ("book/numbers.toml", statements.KEPT, statements.CLAIMS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)


def try_all(faults: list[Fault], values: bool = True) -> list[str]:
    """For each fault, who notices it; without `values` nothing is computed and only the list is asked."""
    with tempfile.TemporaryDirectory() as folder:
        root, found = Path(folder), []
        copy(root)
        before = set(prose_numbers.problems(root)) if values else None
        for fault in faults:
            path = place(fault, root)
            original = path.read_text("utf-8")
            path.write_text(plant(fault, original, path.suffix), "utf-8")
            found.append(noticed(fault, root, before))
            path.write_text(original, "utf-8")
        return found


def report(faults: list[Fault], found: list[str]) -> int:
    """Print what was not noticed and the rate of each kind; 1 if too few were."""
    for fault, by in zip(faults, found, strict=True):
        if not by:
            print(f"  not noticed: {fault.kind}: {fault.page}: {fault.old!r} -> {fault.new!r}")
    for kind in sorted({fault.kind for fault in faults}):
        tally = Counter(by for fault, by in zip(faults, found, strict=True) if fault.kind == kind)
        print(f"{kind}: {tally.total() - tally['']}/{tally.total()}, {tally['value']} of them by a value")
    tally = Counter(found)
    share = 1 - tally[""] / max(1, len(found))
    print(
        f"noticed {len(found) - tally['']}/{len(found)} = {share:.0%}, {tally['value']} by a value; {LEAST:.0%} are required"
    )
    return 0 if share >= LEAST else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lists", nargs="*", type=Path, help="lists of faults; the project's own by default")
    faults = read(parser.parse_args().lists or [FAULTS])
    return report(faults, try_all(faults))


if __name__ == "__main__":
    sys.exit(main())
