"""The exercise pages follow the list in `src/circuitkit_book/exercises/chapters.py`; this finds where they do not.

The place in the list is the number of an exercise. A heading `## Ex 2.2 Title` has the number of its place, the line below
it has the minutes, and the section calls the check of the exercise if it has one. The card of the page counts the functions to
write and adds up the minutes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

from circuitkit_book.exercises import catalogue
from circuitkit_book.exercises.chapters import CHAPTERS

ROOT = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^## (?:Ex (?P<number>\d+\.\d+) )?(?P<title>.+)$", re.M)
CHECK = re.compile(r"\bexercises\.check_(\w+)\(")
MINUTES = re.compile(r"\b(\d+) (minutes|hours?)\b|\ban (hour)\b")
WRITE = re.compile(r"\bwrite (\w+) (?:functions|tools)\b")
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ROUNDED = 5
"""A card may say `2 hours` for 125 minutes."""


@dataclass
class Section:
    """An exercise as its page has it."""

    number: str
    title: str
    minutes: int
    checks: list[str]


def page_of(chapter: int, root: Path = ROOT) -> Path:
    """The exercise page of a chapter."""
    (path,) = root.glob(f"book/{chapter}-*/exercises.ipynb")
    return path


def minutes(text: str) -> int:
    """The first time that a text names, in minutes; 0 if it names none."""
    found = MINUTES.search(text)
    if not found:
        return 0
    return int(found[1] or 1) * (1 if found[2] == "minutes" else 60)


def sections(notebook) -> list[Section]:
    """The exercises of a page in its order."""
    found: list[Section] = []
    inside = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for heading in HEADING.finditer(cell.source):
                inside = heading["number"] is not None
                if inside:
                    below = cell.source[heading.end() :].strip().partition("\n")[0]
                    section = Section(heading["number"], heading["title"], minutes(below), [])
                    found.append(section)
        elif inside:
            found[-1].checks += CHECK.findall(cell.source)
    return found


def time(path: Path) -> str:
    """The time on the card of a page, as it is written there."""
    return nbformat.read(path, as_version=4).cells[0].source.split("|")[-2].strip()


def faults(chapter: int, page) -> list[str]:
    """What to write where the page of a chapter does not follow the list."""
    found, names = sections(page), CHAPTERS[chapter - 1]
    if len(found) != len(names):
        return [
            f"The page has {len(found)} exercises and the list has {len(names)}: {', '.join(names)}. Write the name of a "
            "new exercise at its place in src/circuitkit_book/exercises/chapters.py, and its section at this place."
        ]
    problems = []
    with_check = {exercise.name for exercise in catalogue(chapter)}
    for place, (section, name) in enumerate(zip(found, names, strict=True), 1):
        expected = [name] if name in with_check else []
        if list(dict.fromkeys(section.checks)) != expected:
            calls = ", ".join(section.checks) or "no check"
            problems.append(
                f"Ex {section.number} {section.title} has {calls}, and {name!r} is at its place in "
                "src/circuitkit_book/exercises/chapters.py. Move the section, or the name."
            )
        if section.number != f"{chapter}.{place}":
            problems.append(f"Write the heading: ## Ex {chapter}.{place} {section.title}")
        if not section.minutes:
            problems.append(f"Write the minutes below the heading of Ex {section.number}.")
    card = page.cells[0].source.split("|---|---|---|")[-1]
    total = sum(section.minutes for section in found)
    return problems + false_sums(card, len(with_check), total)


def false_sums(card: str, functions: int, total: int) -> list[str]:
    """Where a card counts functions or adds up minutes wrongly."""
    problems = []
    written = WRITE.search(card)
    if written and written[1] != WORDS[functions]:
        problems.append(f'The card of the page says "{written[0]}": write {WORDS[functions]}.')
    if abs(minutes(card) - total) > ROUNDED:
        problems.append(
            f"The card of the page says {minutes(card)} minutes: write {total} minutes."
        )
    return problems


def table() -> str:
    """The rows of the instructors' table: which exercises of each chapter are short, longer, and last."""
    lines = ["| Session and chapter | Up to 15 minutes | Longer | Last |", "|---|---|---|---|"]
    for chapter, names in enumerate(CHAPTERS, 1):
        path = page_of(chapter)
        found = sections(nbformat.read(path, as_version=4))
        with_check = {exercise.name for exercise in catalogue(chapter)}
        end = max(place for place, name in enumerate(names, 1) if name in with_check)
        short = [section.number for section in found[:end] if section.minutes <= 15]
        longer = [section.number for section in found[:end] if section.minutes > 15]
        last = [section.number for section in found[end:]]
        folder = path.parent.name
        title = re.match(r"# (.+)", path.with_name("index.md").read_text("utf-8"))[1]
        place = f"{chapter}: [{title}]({folder}/index.md), [exercises]({folder}/exercises.ipynb)"
        cells = [place, *(f"Ex {', '.join(part)}" for part in (short, longer, last))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
