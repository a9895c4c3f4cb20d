"""What helps a reader on a page: meanings of terms, buttons, notes, formulas, folded solutions."""

import json
import re
from urllib.parse import unquote

import pytest
from playwright.sync_api import expect

from tests.support.site import DESKTOP, HTML, ROOT
from tools.notebooks.execute import notebooks

CHAPTER = "book/3-induction-heads/why-two-layers"
EXERCISES = "book/3-induction-heads/exercises"
FORMULAS = "book/notation"


@pytest.fixture
def page(open_page, site):
    return open_page(f"{site}/{CHAPTER}.html", again=True, width=DESKTOP).page


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


def test_buttons_give_the_executed_notebook_and_the_copy_to_work_on(open_page, site):
    page = open_page(f"{site}/{EXERCISES}.html", again=True).page
    links = page.locator(".ck-buttons a[download]").evaluate_all("all => all.map(a => a.pathname)")
    given = [(HTML / unquote(link).lstrip("/")).read_bytes() for link in links]
    sources = ["exercises/3-induction-heads.ipynb", f"{EXERCISES}.ipynb"]
    assert given == [(ROOT / name).read_bytes() for name in sources]


def test_formulas_are_readable_when_mathjax_does_not_load(open_page, site):
    page = open_page("about:blank").page
    page.route("**/mathjax/startup.js*", lambda route: route.abort())
    page.goto(f"{site}/{FORMULAS}.html")
    page.mouse.wheel(0, 300)
    expect(page.locator("article section > p > span.math").first).to_be_visible()


def test_a_folded_solution_opens_with_one_key(page):
    fold = page.locator("details.hide").filter(has_text="Show the solution").first
    expect(fold.locator("pre").first).to_be_hidden()
    fold.locator("summary").press("Enter")
    expect(fold.locator("pre").first).to_be_visible()


def test_code_fits_a_page_of_1280_pixels(page):
    wide = """all => all.filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
        .map(e => e.textContent.slice(0, 80))"""
    assert page.locator(".cell_input pre").evaluate_all(wide) == []


def plain(html: str) -> str:
    """A part of a page without its tags."""
    return re.sub(r"<[^>]+>", "", html)


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_page_counts_its_checks_and_shows_none_of_them(path):
    name = path.relative_to(ROOT).with_suffix(".html")
    page = (HTML / name).read_text("utf-8")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    checks = [cell for cell in cells if "check" in cell["metadata"].get("tags", [])]
    mark = re.search(r'<a class="ck-checked".*?</a>', page, re.S)
    assert int(plain(mark[0]).split()[1] if mark else 0) == len(checks)
    shown = re.findall(r'<div class="cell_input.*?<pre>(.*?)</pre>', page, re.S)
    assert len(shown) == page.count('class="cell_input') > 0
    code = plain("".join(shown))
    assert "google.colab" not in code
    assert "\nassert " not in code
    assert len(re.findall(r'class="[^"]*\bck-card\b', page)) == 1
