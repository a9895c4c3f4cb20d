"""Plant slips of the pen in the pages' text, one at a time, and say how many the checks of the prose notice.

    python -m tools text-faults            every fault of tests/prose/text_faults.toml
    python -m tools text-faults FILE ...   other lists of the same form: [[fault]] with kind, page, old and new

A fault is noticed by a *value* where something computed no longer agrees: a binding of book/numbers.toml, whose quote may
follow the slip as a careless author would let it; an equation; a rule of the claims register. It is noticed by a *quote*
where a binding names the value to look at but its expression does not read the words, and otherwise by the *list* of
statements, which knows only that a statement changed.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from os.path import commonprefix
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
    return [
        Fault(**row) for path in paths for row in tomllib.loads(path.read_text("utf-8"))["fault"]
    ]


def place(fault: Fault, root: Path) -> Path:
    return (
        root / statements.CLAIMS
        if fault.page == "claims.toml"
        else prose_numbers.pages(root)[fault.page]
    )


def plant(fault: Fault, text: str, suffix: str) -> str:
    """The text with the fault in it; in a notebook a Markdown cell has it, or an alt text, in source and output alike."""
    if suffix != ".ipynb":
        if text.count(fault.old) != 1:
            raise ValueError(
                f"{fault.page}: {fault.old!r} is there {text.count(fault.old)} times; expected once"
            )
        return text.replace(fault.old, fault.new)
    book = json.loads(text)
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "markdown"]
    there = [cell for cell in cells if fault.old in "".join(cell["source"])]
    alt, false = (json.dumps(words, ensure_ascii=False)[1:-1] for words in (fault.old, fault.new))
    if not there and alt in text:
        return text.replace(alt, false)
    if len(there) != 1 or "".join(there[0]["source"]).count(fault.old) != 1:
        raise ValueError(
            f"{fault.page}: {fault.old!r} is in {len(there)} cells; expected once in one"
        )
    there[0]["source"] = "".join(there[0]["source"]).replace(fault.old, fault.new)
    return json.dumps(book)


def noticed(fault: Fault, root: Path, before: set[str] | None) -> str:
    """`value`, `quote`, `list` or nothing: who notices the fault in the copy `root`; only the list without `before`."""
    if before is None:
        return "list" if statements.differences(root) else ""
    if fault.page == "claims.toml":
        from circuitkit.claims import problems
        from circuitkit.claims._register import parse

        if problems(parse(place(fault, root).read_text("utf-8"))):
            return "value"
    else:
        page = re.sub(
            r"\s",
            " ",
            "".join(text for text, _ in prose_numbers.beside(prose_numbers.pages()[fault.page])),
        )
        followed = [follow(entry, fault, page) for entry in prose_numbers.bindings()]
        if wrong_equations(fault, root) or set(prose_numbers.problems(root, followed)) - before:
            return "value"
        if set(prose_numbers.problems(root)) - before:
            return "quote"
    return "list" if statements.differences(root) else ""


def follow(entry: dict, fault: Fault, page: str) -> dict:
    """A binding of this page whose quote says what the page says with the slip, its marks where they were."""
    old, new = (re.sub(r"\s", " ", words) for words in (fault.old, fault.new))
    if entry["page"] != fault.page or page.count(old) != 1:
        return entry
    same = len(commonprefix([old, new]))
    end = len(commonprefix([old[same:][::-1], new[same:][::-1]]))
    start, stop, words = (
        page.index(old) + same,
        page.index(old) + len(old) - end,
        new[same : len(new) - end],
    )

    def moved(quote: str) -> str:
        plain, marks = prose_numbers.marked(quote)
        first = page.find(plain)
        if first < 0 or stop <= first or start >= first + len(plain):
            return quote
        places = [(first + a, first + b) for a, b in marks]
        if any(
            start < edge < stop and not a <= start < stop <= b for a, b in places for edge in (a, b)
        ):
            return quote  # it can no longer be told what the mark would stand around
        begin = min(first, start)
        text = page[begin:start] + words + page[stop : max(first + len(plain), stop)]
        for a, b in reversed(places):
            a, b = (at - begin + (len(words) - (stop - start)) * (at >= stop) for at in (a, b))
            text = f"{text[:a]}«{text[a:b]}»{text[b:]}"
        return text

    quotes = entry["quote"]
    return {
        **entry,
        "quote": moved(quotes) if isinstance(quotes, str) else [moved(quote) for quote in quotes],
    }


def wrong_equations(fault: Fault, root: Path) -> list[str]:
    """Numbered equations of the page that the fault changed and that no longer hold."""
    from tests.prose import test_equation_values as values

    now, found = values.equations(root / "book"), []
    for number, latex in values.equations().items():
        if now.get(number) != latex:
            try:
                values.TIES[number](now[number])
            except (
                Exception
            ) as problem:  # a changed formula may fail to be read, to be computed, or to agree
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
    """For each fault, who notices it (`value`, `quote`, `list`); without `values` nothing is computed and only the list is asked."""
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
        print(
            f"{kind}: {tally.total() - tally['']}/{tally.total()}, {tally['value']} of them by a value, {tally['quote']} by a quote"
        )
    tally = Counter(found)
    share = 1 - tally[""] / max(1, len(found))
    print(
        f"noticed {len(found) - tally['']}/{len(found)} = {share:.0%}: {tally['value']} by a value, {tally['quote']} by a quote, "
        f"{tally['list']} by the list; {LEAST:.0%} are required"
    )
    return 0 if share >= LEAST else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "lists", nargs="*", type=Path, help="lists of faults; the project's own by default"
    )
    faults = read(parser.parse_args().lists or [FAULTS])
    return report(faults, try_all(faults))


if __name__ == "__main__":
    sys.exit(main())
