"""The search of the book, in a browser: what a reader asks for leads to the page that answers it."""

import json
import re

import pytest
from browser_tools import HTML, Visit, served
from playwright.sync_api import expect

ANSWERS = {
    "install": "intro",
    "how do I install": "intro",
    "error": "errors",
    "induction head": "03-induction-heads",
    "composition": "glossary",
    "ov": "02-qk-and-ov-circuits",
    "softmax": "glossary",
    "residual stream": "01-residual-stream",
    "what is a logit": "glossary",
    "superposition": "glossary",
    "ablation": "glossary",
    "LayerNorm": "01-residual-stream",
    "HookedTransformer": "errors",
    "colab": "errors",
    "K-composition": "glossary",
    "gated block": "05-attention-superposition",
    "is this tested": "how-tested",
    "wrong claims": "claims",
    "matrix convention": "conventions",
    "GPT-2": "errors",
    "composition_scores": "circuits",
    "tokenizers": "glossary",
    "MLP layers as attention": "04-mlps-as-attention",
    "privileged basis": "glossary",
    "how the house is built": "house",
}


@pytest.fixture(scope="module")
def opened(browser):
    assert HTML.is_dir(), "the book is not built; run `make book` first"
    with served() as address:
        visit = Visit(browser, address, "search.html?q=induction+head", "light", "phone")
        yield visit
        visit.context.close()


@pytest.fixture(scope="module")
def found(opened):
    """For each question the pages, best first, and the snippets of the best place of each."""
    return opened.page.evaluate(
        """asked => asked.map(question => bookSearch.search(question)
            .map(page => [page.address.match(/([^/]*)\\.html/)[1], page.places[0].snippet]))""",
        list(ANSWERS),
    )


def test_the_page_that_answers_comes_first(found):
    first = {question: pages[0][0] for question, pages in zip(ANSWERS, found, strict=True) if pages}
    assert first == ANSWERS


def test_snippets_are_sentences(found):
    snippets = [snippet for pages in found for _, snippet in pages[:3] if snippet]
    assert len(snippets) > len(ANSWERS)
    assert [
        text for text in snippets if " " not in text or "Contents" in text or "\n" in text
    ] == []
    cut = [text for text in snippets if not re.search(r"[.?!:…”’)\]\w;]$", text)]
    assert cut == []


def test_setup_cells_and_code_are_not_indexed():
    index = (HTML / "_static/search-index.js").read_text("utf-8")
    pages = json.loads(index.removeprefix("const searchIndex = ").rstrip(";\n"))
    text = "\n".join(line for _, _, places in pages for _, _, line, _ in places)
    assert len(pages) > 20
    assert not re.search(r"importlib|^import |subprocess|plt\.", text, re.M)


def test_every_place_of_the_index_is_there():
    index = (HTML / "_static/search-index.js").read_text("utf-8")
    for address, _, places in json.loads(index.removeprefix("const searchIndex = ").rstrip(";\n")):
        page = (HTML / address).read_text("utf-8")
        assert [anchor for anchor, *_ in places if f'id="{anchor}"' not in page] == []


def test_a_result_is_shown_with_its_sentence_and_opens(opened):
    page = opened.page
    expect(page.locator("#search-results .search-summary")).to_contain_text(
        "pages found for “induction head”"
    )
    first = page.locator("#search-results li").first
    assert "induction head" in first.locator("p.context").first.inner_text().lower()
    assert (opened.errors, opened.outside, opened.sideways(), opened.violations()) == (
        [],
        [],
        [],
        [],
    )


def test_a_word_that_is_nowhere_is_told_and_hostile_words_stay_text(opened):
    said = opened.page.evaluate(
        """() => { const box = document.createElement('div');
            bookSearch.show(box, '<img src=x onerror=alert(1)>');
            return [box.textContent, box.querySelectorAll('img').length]; }"""
    )
    assert "<img src=x" in said[0]
    assert said[1] == 0
