"""Every work is cited by a page, and every entry of the page on further reading leads to a page of the book."""

import re

import pytest
from pybtex.database import parse_file

from tools.check.numbers_in_prose import ROOT, cells_of, pages

BOOK = ROOT / "book"
WORKS = parse_file(str(BOOK / "references.bib")).entries
READING = (BOOK / "further-reading.md").read_text("utf-8")


def cited(text: str) -> set[str]:
    """The keys of all citations in a text."""
    roles = re.findall(r"\{cite:[pt]\}`([^`]+)`", text)
    return {key.strip() for role in roles for key in role.split(",")}


def entries(page: str) -> list[str]:
    """The list entries of a Markdown page that cite a work."""
    parts = re.split(r"\n(?=- |\n|#)", page)
    return [part for part in parts if part.startswith("- ") and cited(part)]


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)#]+)", text)


def cited_by_the_book() -> set[str]:
    found = set()
    for path in pages().values():
        for cell in cells_of(path):
            if cell["cell_type"] == "markdown":
                found |= cited("".join(cell["source"]))
    return found


def test_every_work_is_cited_and_every_citation_has_a_work():
    assert cited_by_the_book() == set(WORKS)


@pytest.mark.parametrize("key", WORKS)
def test_a_work_has_a_title_an_author_a_year_and_a_place(key):
    fields = WORKS[key].fields
    assert fields["title"]
    assert WORKS[key].persons["author"]
    assert "year" in fields or "no date" in fields["note"]
    assert "url" in fields or "not published" in fields["note"]


@pytest.mark.parametrize("entry", entries(READING), ids=lambda entry: min(cited(entry)))
def test_an_entry_leads_to_a_page_of_the_book(entry):
    assert links(entry)
    assert [link for link in links(entry) if not (BOOK / link).exists()] == []


def test_the_entries_cite_all_works():
    assert set().union(*map(cited, entries(READING))) == set(WORKS)


def test_an_entry_without_a_link_is_found():
    page = "- One does it {cite:p}`one2024`. See [this](claims.md).\n- Two {cite:p}`two2025,\nthree`.\n\nEnd"
    first, second = entries(page)
    assert links(first) == ["claims.md"]
    assert links(second) == []
    assert cited(second) == {"two2025", "three"}
