"""The book on paper: how the pages are joined, and what `make pdf` refuses. Printing itself takes a minute."""

import re
from io import BytesIO

import pytest
from browser_tools import HTML, pages
from bs4 import BeautifulSoup
from pypdf import PdfReader, PdfWriter

from tools.publish import pdf


@pytest.fixture(scope="module")
def book():
    assert HTML.is_dir(), "the book is not built; run `make book` first"
    return pdf.chapters(HTML)


@pytest.fixture(scope="module")
def document(book):
    return BeautifulSoup(pdf.joined(HTML, book, {"p00": 5}), "html.parser")


def test_every_page_of_the_book_is_a_chapter_in_order(book):
    assert [chapter.page for chapter in book] == pages()
    assert all(chapter.title for chapter in book)


def test_every_link_leads_into_the_document_or_to_the_web(document):
    anchors = {element["id"] for element in document.find_all(id=True)}
    links = [link["href"] for link in document.find_all("a", href=True)]
    assert [link for link in links if not re.match(r"https?:|mailto:|#", link)] == []
    assert [link for link in links if link.startswith("#") and link[1:] not in anchors] == []


def test_no_two_places_share_an_anchor(document):
    names = [element["id"] for element in document.find_all(id=True)]
    assert len(names) == len(set(names))


def test_every_picture_is_there_and_speaks(document):
    for image in document.find_all("img"):
        assert image["src"].startswith("data:") or (HTML / image["src"]).is_file()
        assert image.get("alt", "").strip()
    assert (
        len(document.select(".ck-attention img.ck-still"))
        == len(document.select(".ck-attention"))
        > 0
    )


def test_answers_are_open_and_nothing_is_left_to_press(document):
    assert all(details.has_attr("open") for details in document.find_all("details"))
    assert document.find_all(["button", "input", "form"]) == []
    assert "Hide the solution" not in document.get_text()


def test_the_contents_have_the_known_page_numbers(document):
    numbers = [span.get_text() for span in document.select(".contents a span")]
    assert numbers[0] == "5"
    assert set(numbers[1:]) == {"000"}


def printed(*sizes, marks=()) -> PdfReader:
    writer = PdfWriter()
    for width, height in sizes:
        writer.add_blank_page(width, height)
    for title in marks:
        writer.add_outline_item(title=title, page_number=0)
    buffer = BytesIO()
    writer.write(buffer)
    return PdfReader(buffer)


def test_an_empty_page_a_lost_chapter_and_a_lost_picture_are_refused():
    reader = printed((500, 700), marks=["Heads"])
    assert pdf.faults(reader, ["Heads", "Circuits"], 1) == [
        "no bookmark for the chapter 'Circuits'",
        "page 1 is empty or nearly so",
        "0 pictures are drawn of 1",
    ]
