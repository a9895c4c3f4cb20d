"""The exercise pages have the order, numbers, counts and minutes of the list of exercises."""

import nbformat
import pytest

from circuitkit_book.exercises import chapters
from tools.check import exercise_pages


def page_and_index(chapter):
    path = exercise_pages.page_of(chapter)
    return nbformat.read(path, as_version=4), path.with_name("index.md").read_text("utf-8")


@pytest.mark.parametrize("chapter", range(1, len(chapters.CHAPTERS) + 1))
def test_the_page_follows_the_list(chapter):
    found = exercise_pages.faults(chapter, *page_and_index(chapter))
    assert not found, "\n".join(found)


def test_a_new_exercise_in_the_list_or_on_the_page_alone_is_found(monkeypatch):
    page, index = page_and_index(2)
    first, second, *others = chapters.CHAPTERS
    monkeypatch.setattr(exercise_pages, "CHAPTERS", (first, (*second, "new"), *others))
    (fault,) = exercise_pages.faults(2, page, index)
    assert "The page has 6 exercises and the list has 7" in fault
    monkeypatch.setattr(exercise_pages, "CHAPTERS", (first, second[:-1], *others))
    (fault,) = exercise_pages.faults(2, page, index)
    assert "Write the name of a new exercise at its place" in fault


def test_what_to_write_is_said_after_an_exchange_in_the_list_and_on_the_card():
    page, index = page_and_index(2)
    for cell in page.cells:
        cell.source = cell.source.replace("## Ex 2.3", "## Ex 2.2").replace("15 minutes", "hard")
        cell.source = cell.source.replace("write four functions", "write five functions")
        cell.source = cell.source.replace("check_copying_head", "check_first_share")
    found = "\n".join(exercise_pages.faults(2, page, index.replace("85 minutes", "2 hours")))
    assert "Write the heading: ## Ex 2.3 A head that copies, by hand" in found
    assert "has first_share, and 'copying_head' is at its place" in found
    assert 'card of the page says "write five functions": write four.' in found
    assert "Write the minutes below the heading of Ex 2.4." in found
    assert "row of the chapter's table says 120 minutes: write 55 minutes." in found


def test_the_table_of_the_instructors_sorts_by_minutes():
    row = exercise_pages.table().split("\n")[3]
    assert row.endswith("| Ex 2.1, 2.2, 2.4, 2.5 | Ex 2.3 | Ex 2.6 |")
