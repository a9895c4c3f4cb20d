"""The search of the book: the page that answers a question is among the first results."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.support.site import HTML

ANSWERS = {
    "how do I install": "your-model",
    "pip install": "your-model",
    "induction head": "3-induction-heads",
    "softmax": "notation",
    "residual stream": "1-residual-stream",
    "MLP layers as attention": "4-mlps-as-heads",
    "matrix convention": "notation",
    "error message": "your-model",
    "instructor": "instructors",
    "syllabus": "instructors",
    "course": "instructors",
    "composition_scores": "circuits",
}
SEARCH = "question => bookSearch.search(question).map(page => page.address)"
SHOW = """words => {
    const box = document.createElement("div");
    bookSearch.show(box, words);
    return [box.textContent, box.querySelectorAll("img").length];
}"""


@pytest.fixture
def page(open_page, site):
    return open_page(f"{site}/search.html?q=induction+head", again=True).page


def test_answering_page_is_among_the_first_three_results(page):
    found = {question: page.evaluate(SEARCH, question)[:3] for question in ANSWERS}
    wrong = {
        question: found[question]
        for question, name in ANSWERS.items()
        if not any(f"/{name}" in address for address in found[question])
    }
    assert wrong == {}


def test_result_shows_the_words_searched_for_and_opens_its_page(page):
    first = page.locator("#search-results li").first
    expect(first.locator("p.context").first).to_contain_text("nduction head")
    first.locator("a").first.click()
    page.wait_for_url("**/book/**/*.html**")
    assert "induction head" in page.locator("article").inner_text().lower()


def test_html_in_a_query_stays_text(page):
    text, images = page.evaluate(SHOW, "<img src=x onerror=alert(1)>")
    assert "<img src=x" in text
    assert images == 0


def test_every_search_result_leads_to_an_existing_anchor():
    index = (HTML / "_static/search-index.js").read_text("utf-8")
    entries = json.loads(index.removeprefix("const searchIndex = ").rstrip(";\n"))
    for address, _, places in entries:
        anchors = set(re.findall(r'id="([^"]+)"', (HTML / address).read_text("utf-8")))
        assert {anchor for anchor, *_ in places if anchor} <= anchors, address
