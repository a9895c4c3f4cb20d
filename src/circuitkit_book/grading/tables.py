"""What an instructor gets: a table with a row for each student and exercise, and a page about the class."""

import csv
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path

import jinja2

from circuitkit_book.exercises.checking import place
from circuitkit_book.exercises.contents import catalogue
from circuitkit_book.grading.grader import Row
from circuitkit_book.grading.mystery_files import MISTAKES

MYSTERY = "the mystery of each student"
MYSTERY_SECTION = "3-induction-heads/induction-in-a-trained-model#cut-one-wire"


def write_csv(rows: Sequence[Row], out: Path) -> None:
    """Write the rows as a table. A text that a spreadsheet would take for a formula gets an apostrophe in front."""
    text = StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: harmless(value) for key, value in asdict(row).items()} for row in rows)
    write_whole(text.getvalue(), out)


def harmless(value: object) -> object:
    """Return a value that no spreadsheet computes."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


def write_whole(text: str, out: Path) -> None:
    """Write a file that is never left half-written."""
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        unfinished.write_text(text, "utf-8", newline="")
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def class_page(rows: Sequence[Row], *, names: bool = False, book: str = "") -> str:
    """Return a page about the class: what most students got wrong, the section that treats it, and what nobody solved.

    Parameters
    ----------
    rows : the rows of all students
    names : whether the page names the students, with how many exercises each has solved
    book : the address of the built book, with which each section becomes a link

    Source: this book.
    """
    exercises = {one.name: one for one in catalogue()}
    n_students = len({row.student for row in rows})
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.name].append(row)
    lines = []
    for name, group in groups.items():
        section = exercises[name].section if name in exercises else MYSTERY_SECTION
        lines.append(
            {
                "number": group[0].exercise,
                "title": exercises[name].title if name in exercises else MYSTERY,
                "accepted": sum(row.accepted for row in group),
                "tried": sum(row.outcome not in ("no answer", "not read") for row in group),
                "mistakes": Counter(row.mistake for row in group if row.mistake).most_common(),
                "other": sum(row.outcome == "stopped" or is_unnamed(row) for row in group),
                "section": place(section),
                "link": address(book, section),
            }
        )
    mistakes = [
        {"name": mistake, "students": count, **line, "hint": hint_of(exercises, mistake)}
        for line in lines
        for mistake, count in line["mistakes"]
    ]
    stopped = [row for row in rows if row.outcome in ("stopped", "not read")]
    values = {
        "n_students": n_students,
        "lines": lines,
        "mistakes": sorted(mistakes, key=lambda one: -one["students"]),
        "unsolved": [line for line in lines if line["tried"] and not line["accepted"]],
        "untried": [line["number"] for line in lines if not line["tried"]],
        "n_stopped": len({row.student for row in stopped}),
        "students": solved(rows) if names else [],
        "seed": rows[0].seed if rows else 0,
        "is_limited": all(row.memory == "limited" for row in rows),
    }
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    return environment.get_template("class.html").render(values)


def is_unnamed(row: Row) -> bool:
    """Whether an answer was not accepted for a reason that has no name."""
    return row.outcome == "not accepted" and not row.mistake


def solved(rows: Sequence[Row]) -> list[tuple[str, int, str]]:
    """Return each student with the number of accepted answers and the first note about a file that was stopped."""
    accepted = Counter(row.student for row in rows if row.accepted)
    notes = {}
    for row in rows:
        if row.outcome in ("stopped", "not read"):
            notes.setdefault(row.student, f"{row.exercise}: {row.note}")
    students = dict.fromkeys(row.student for row in rows)
    return [(student, accepted[student], notes.get(student, "")) for student in students]


def hint_of(exercises: dict, mistake: str) -> str:
    """Return the hint that a reader gets for a mistake."""
    first = mistake.split(" or ")[0]
    hints = {one.__name__: one.__doc__ for each in exercises.values() for one in each.mistakes}
    return hints.get(first) or MISTAKES.get(first, "")


def address(book: str, section: str) -> str:
    """Return the address of a section in a built book; empty without one."""
    if not book:
        return ""
    page, _, anchor = section.partition("#")
    return f"{book.rstrip('/')}/book/{page}.html" + (f"#{anchor}" if anchor else "")
