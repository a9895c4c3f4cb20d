"""The exercise pages have the order, numbers, counts and minutes of the list of exercises."""

import re
from types import SimpleNamespace

import nbformat
import pytest
from nbformat import v4

from circuitkit_book.exercises import chapters
from tools.check import exercise_pages

CHAPTERS = range(1, len(chapters.CHAPTERS) + 1)


def page_of(chapter):
    return nbformat.read(exercise_pages.page_of(chapter), as_version=4)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_page_follows_the_list(chapter):
    found = exercise_pages.faults(chapter, page_of(chapter))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_what_is_measured_after_a_prediction_or_a_claim_is_folded(chapter):
    """Up to the next heading, because a later exercise shows what its reader has made."""
    after, shown = False, []
    for cell in page_of(chapter).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown":
            after = after and not re.search("^## ", cell.source, re.M)
        elif re.search(r"exercises\.(predict|try_claim)\(", cell.source):
            after = True
        elif after and cell.outputs and not {"hide-output", "solution"} & {*tags}:
            shown.append(cell.source)
    assert shown == []


@pytest.fixture
def page(monkeypatch):
    """A page of a prediction and two functions, in a book of one chapter."""
    monkeypatch.setattr(exercise_pages, "CHAPTERS", (("guess", "one", "two"),))
    catalogue = [SimpleNamespace(name="one"), SimpleNamespace(name="two")]
    monkeypatch.setattr(exercise_pages, "catalogue", lambda chapter: catalogue)
    card = "# Exercises\n\n| You will | You need | Time |\n|---|---|---|\n"
    cells = [
        v4.new_markdown_cell(card + "| write two functions | PyTorch | 30 minutes |"),
        v4.new_markdown_cell("## Ex 1.1 Guess\n\n*easy, 5 minutes*"),
        v4.new_code_cell("guess = exercises.predict(guess, names)"),
        v4.new_markdown_cell("Words.\n\n## Ex 1.2 One\n\n*easy, 10 minutes*"),
        v4.new_code_cell("one = exercises.check_one(one)"),
        v4.new_markdown_cell("## Ex 1.3 Two\n\n*hard, 15 minutes*"),
        v4.new_code_cell("two = exercises.check_two(two)"),
        v4.new_markdown_cell("## Summary\n\nWords."),
        v4.new_code_cell("exercises.check_one(one)"),
    ]
    return v4.new_notebook(cells=cells)


def test_a_page_that_follows_has_no_faults(page):
    assert exercise_pages.faults(1, page) == []


def test_a_new_exercise_in_the_list_or_on_the_page_alone_is_found(page, monkeypatch):
    for names, counts in ((("guess", "one", "new", "two"), "3 exercises and the list has 4"),
                          (("guess", "one"), "3 exercises and the list has 2")):  # fmt: skip
        monkeypatch.setattr(exercise_pages, "CHAPTERS", (names,))
        (fault,) = exercise_pages.faults(1, page)
        assert f"The page has {counts}" in fault
        assert "Write the name of a new exercise at its place" in fault


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("## Ex 1.3", "## Ex 1.2", "Write the heading: ## Ex 1.3 Two"),
        ("two functions", "three functions", 'The card of the page says "write three functions": write two.'),
        ("30 minutes", "an hour", "The card of the page says 60 minutes: write 30 minutes."),
        ("hard, 15 minutes", "15 minutes, hard", ""),
        ("check_two", "check_one", "has one, and 'two' is at its place"),
        ("exercises.predict", "exercises.check_two", "has two, and 'guess' is at its place"),
    ],
)  # fmt: skip
def test_what_to_write_is_said(page, old, new, fault):
    for cell in page.cells:
        cell.source = cell.source.replace(old, new)
    found = "\n".join(exercise_pages.faults(1, page))
    assert fault in found
    assert bool(fault) == bool(found)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_table_of_the_instructors_has_every_exercise_once_and_sorts_by_minutes(chapter):
    cells = exercise_pages.table().split("\n")[chapter + 1].split("|")[2:5]
    listed = [re.findall(r"\d\.\d+", cell) for cell in cells]
    times = {
        section.number: section.minutes for section in exercise_pages.sections(page_of(chapter))
    }
    assert sorted(sum(listed, [])) == sorted(times)
    assert (
        max(times[number] for number in listed[0])
        <= 15
        < min(times[number] for number in listed[1])
    )
    assert listed[2][-1] == list(times)[-1]
