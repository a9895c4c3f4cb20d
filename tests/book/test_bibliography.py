"""Every work is named and cited, and every entry of the page on further reading leads to a page of the book."""

import re
import unicodedata

import pytest
from pybtex.database import parse_file
from pybtex.richtext import Text

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


def plain(name: str) -> str:
    """A name without accents, so that Bjorck is Björck."""
    letters = unicodedata.normalize("NFD", str(Text.from_latex(name)))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def named(text: str) -> set[tuple[str, str]]:
    """First author and year of each work in a text: `Su et al. (2021)`, `Kneser and Ney 1995`."""
    word = r"[^\W\d_][\w'’-]+"
    work = rf"\b({word})(?: et al\.|(?:, {word})*,? and {word})[ ,]+\(?(\d{{4}})$"
    text = re.sub(r"\s+", " ", text)
    ends = [year.end() for year in re.finditer(r"\b(?:19|20)\d\d\b", text)]
    found = [re.search(work, text[max(0, end - 80) : end]) for end in ends]
    return {(plain(one[1]), one[2]) for one in found if one and one[1][0].isupper()}


def known() -> set[tuple[str, str]]:
    """First author and year of each entry; a preprint may be named by its own year."""
    found = set()
    for work in WORKS.values():
        first = plain(" ".join(work.persons["author"][0].last_names))
        preprint = re.search(r"arxiv\.org/abs/(\d\d)\d\d\.", work.fields.get("url", ""))
        years = [work.fields.get("year", ""), f"20{preprint[1]}" if preprint else ""]
        found |= {(first, year) for year in years}
    return found


def test_every_work_that_a_page_or_a_docstring_names_has_an_entry():
    sources = sorted((ROOT / "src").rglob("*.py"))
    texts = {path: [path.read_text("utf-8")] for path in sources}
    for path in pages().values():
        cells = [cell for cell in cells_of(path) if cell["cell_type"] == "markdown"]
        texts[path] = ["".join(cell["source"]) for cell in cells]
    have = known()
    missing = {
        (path.name, *work)
        for path, parts in texts.items()
        for part in parts
        for work in named(part) - have
    }
    assert missing == set()
    text = "Björck and\n  Golub 1973; Ba, Kiros and Hinton (2016), and Su et al., 2021"
    assert named(text) == {("Bjorck", "1973"), ("Ba", "2016"), ("Su", "2021")}


def test_an_entry_without_a_link_is_found():
    page = "- One does it {cite:p}`one2024`. See [this](claims.md).\n- Two {cite:p}`two2025,\nthree`.\n\nEnd"
    first, second = entries(page)
    assert links(first) == ["claims.md"]
    assert links(second) == []
    assert cited(second) == {"two2025", "three"}
