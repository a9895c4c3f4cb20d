"""What helps a reader on a page: meanings of terms, the download button, formulas, folded code."""

import pytest
from playwright.sync_api import expect

from tests.support.site import DESKTOP, HTML, ROOT

CHAPTER = "book/3-induction-heads/why-two-layers"


@pytest.fixture
def page(open_page, site):
    return open_page(f"{site}/{CHAPTER}.html", width=DESKTOP).page


def test_term_shows_its_meaning_on_focus_and_hover_and_hides_it_on_escape(page):
    term = page.locator(".ck-gloss").first
    link, meaning = term.locator("a"), term.locator(".ck-definition")
    assert link.get_attribute("aria-describedby") == meaning.get_attribute("id")
    link.focus()
    expect(meaning).to_be_visible()
    page.keyboard.press("Escape")
    expect(meaning).to_be_hidden()
    link.blur()
    link.hover()
    meaning.hover()  # the pointer may move onto the meaning
    expect(meaning).to_be_visible()


def test_download_button_gives_the_executed_notebook(page):
    link = page.locator("a.btn-download-source-button").get_attribute("href")
    downloaded = ((HTML / CHAPTER).parent / link).resolve()
    assert downloaded.read_bytes() == (ROOT / f"{CHAPTER}.ipynb").read_bytes()


def test_formulas_are_readable_when_mathjax_does_not_load(open_page, site):
    page = open_page("about:blank").page
    page.route("**/mathjax/startup.js*", lambda route: route.abort())
    page.goto(f"{site}/{CHAPTER}.html")
    page.mouse.wheel(0, 300)
    expect(page.locator("article section > p > span.math").first).to_be_visible()


def test_folded_code_opens_with_one_key(page):
    fold = page.locator("details.hide.above-input").first
    expect(fold.locator("pre")).to_be_hidden()
    fold.locator("summary").press("Enter")
    expect(fold.locator("pre")).to_be_visible()


def test_code_fits_a_page_of_1280_pixels(page):
    wide = """all => all.filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
        .map(e => e.textContent.slice(0, 80))"""
    assert page.locator(".cell_input pre").evaluate_all(wide) == []
