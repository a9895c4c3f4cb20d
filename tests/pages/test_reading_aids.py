"""What helps a reader on a page, in a browser: search, buttons, numbered equations, meanings of terms."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from browser_tools import HTML, ROOT, Visit, pages, served
from playwright.sync_api import expect

from tools.publish.home import home

HOME = home()
CHAPTERS = [page for page in pages() if re.match(r"book/\d\d-", page)]
NOTEBOOKS = [page for page in pages() if (ROOT / page).with_suffix(".ipynb").is_file()]


@pytest.fixture(scope="module")
def visit(browser):
    assert HTML.is_dir(), "the book is not built; run `make book` first"
    with served() as address:
        yield partial(Visit, browser, address)


@pytest.fixture(scope="module", params=CHAPTERS)
def chapter(request, visit):
    opened = visit(request.param, "light", "desktop")
    yield opened
    opened.context.close()


def test_code_fits_a_page_of_1280_pixels(chapter):
    wide = chapter.page.evaluate(
        """[...document.querySelectorAll('.cell_input pre')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
            .map(e => e.textContent.slice(0, 80))"""
    )
    assert wide == []


def source_of(page: str) -> Path:
    return (ROOT / page).with_suffix(".ipynb")


def test_the_buttons_point_to_this_chapter(chapter):
    """Colab opens the notebook of the branch, "edit" its source; without a home of the book neither is there."""
    place = str(source_of(chapter.page_name).relative_to(ROOT))
    colab = chapter.page.locator("a[href^='https://colab.research.google.com/']")
    edit = chapter.page.locator(
        "a.btn-source-edit-button, a.btn-source-repository-button, .dropdown-launch-buttons"
    )
    if not HOME.public:
        assert (colab.count(), edit.count()) == (0, 0)
        return
    expect(colab).to_have_attribute("href", HOME.colab(place))
    expect(edit.and_(chapter.page.locator("a.btn-source-edit-button"))).to_have_attribute(
        "href", f"{HOME.url}/edit/{HOME.branch}/{place}"
    )


def test_previous_and_next_follow_the_table_of_contents(chapter):
    order = pages()
    at = order.index(chapter.page_name)
    for button, neighbour in (("a.left-prev", order[at - 1]), ("a.right-next", order[at + 1])):
        link = chapter.page.locator(button).first
        assert link.evaluate("link => link.href").endswith(f"/{neighbour}")


def test_the_download_button_saves_the_executed_notebook(chapter, tmp_path):
    chapter.page.get_by_label("Download this page").click()
    with chapter.page.expect_download() as started:
        chapter.page.locator("a.btn-download-source-button").click()
    started.value.save_as(tmp_path / "saved.ipynb")
    assert started.value.suggested_filename == source_of(chapter.page_name).name
    saved = json.loads((tmp_path / "saved.ipynb").read_text("utf-8"))
    assert (tmp_path / "saved.ipynb").read_bytes() == source_of(chapter.page_name).read_bytes()
    code = [cell for cell in saved["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell["outputs"]) for cell in code) > len(code) / 2


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_every_notebook_page_offers_its_notebook(page):
    text = (HTML / page).read_text("utf-8")
    (address,) = re.findall(
        r'<a href="([^"]*)" download target="_blank"\s+class="[^"]*btn-download-source-button', text
    )
    assert ((HTML / page).parent / address).resolve().read_bytes() == source_of(page).read_bytes()


def test_the_time_is_said_near_the_top(chapter):
    time = chapter.page.locator(
        "article p", has_text=re.compile(r"^Time: about \d+ minutes to read, \d+ seconds to run")
    )
    expect(time).to_have_count(1)


def test_equations_carry_their_number_and_links_find_them(chapter):
    equations = chapter.page.locator("div.math[id^='eq-']")
    assert equations.count() >= 2
    for formula in equations.all():
        number = formula.get_attribute("id").removeprefix("eq-").replace("-", ".")
        formula.scroll_into_view_if_needed()
        expect(formula.locator("mjx-container").first).to_be_visible()
        assert number in formula.inner_text().replace("\n", "")
        assert formula.locator("mjx-merror").count() == 0
    assert chapter.page.locator("article a[href*='#eq-']").count() >= 1


def test_a_term_shows_its_meaning_on_hover_and_on_focus_and_hides_it_on_escape(chapter):
    term = chapter.page.locator(".ck-gloss").first
    link, meaning = term.locator("a"), term.locator(".ck-definition")
    assert link.get_attribute("aria-describedby") == meaning.get_attribute("id")
    assert "glossary.html#term-" in link.get_attribute("href")
    link.scroll_into_view_if_needed()
    expect(meaning).to_be_hidden()
    link.focus()
    expect(meaning).to_be_visible()
    chapter.page.keyboard.press("Escape")
    expect(meaning).to_be_hidden()
    link.blur()
    link.hover()
    expect(meaning).to_be_visible()
    meaning.hover()  # the pointer may move onto the meaning without losing it
    expect(meaning).to_be_visible()
    chapter.page.keyboard.press("Escape")
    expect(meaning).to_be_hidden()
    chapter.page.mouse.move(0, 0)
    assert chapter.sideways() == []


def test_no_term_is_linked_twice_in_a_section_or_in_a_heading_code_link_or_formula(chapter):
    forbidden = "h1, h2, h3, h4, code, pre, .math, table, figure, a"
    assert chapter.page.locator(f":is({forbidden}) .ck-gloss").count() == 0
    twice = chapter.page.evaluate(
        """() => { const seen = new Set(), twice = [];
            for (const term of document.querySelectorAll('article .ck-gloss')) {
                const place = term.closest('section')?.id + ' ' + term.querySelector('.ck-definition').textContent;
                if (seen.has(place)) twice.push(place);
                seen.add(place);
            }
            return twice; }"""
    )
    assert twice == []


def test_search_finds_a_chapter_by_a_word_of_its_text(visit):
    opened = visit("search.html?q=incoherent", "light", "desktop")
    results = opened.page.locator("#search-results li a")
    expect(results.first).to_be_visible(timeout=10_000)
    assert any("05-attention-superposition" in link.get_attribute("href") for link in results.all())
    opened.context.close()


def test_the_meaning_of_a_term_is_no_hit_of_the_search(visit):
    """This word stands in the meaning of "superposition" and on no page but the glossary."""
    opened = visit("search.html?q=perpendicular", "light", "desktop")
    results = opened.page.locator("#search-results li a")
    expect(results.first).to_be_visible(timeout=10_000)
    assert {
        re.search(r"[\w-]+(?=\.html)", link.get_attribute("href"))[0] for link in results.all()
    } == {"glossary"}
    opened.context.close()


def test_citations_lead_to_the_list_of_references(visit):
    opened = visit("book/intro.html", "light", "desktop")
    links = opened.page.locator("article a.reference.internal[href*='references.html#']")
    assert links.count() >= 5
    links.first.click()
    expect(opened.page.locator(".citation:target, :target .citation, :target")).to_have_count(1)
    opened.context.close()


def test_formulas_arrive_when_a_reader_comes_near_them_and_not_before(browser):
    """A chapter opens without a formula in the window: its reader waits for no typesetting until she moves."""
    with served() as address:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(f"{address}/book/03-induction-heads.html", wait_until="load")
        page.wait_for_timeout(500)
        assert page.evaluate(
            "[window.MathJax?.version ?? '', document.querySelectorAll('mjx-container').length]"
        ) == ["", 0]
        page.mouse.wheel(0, 900)
        page.wait_for_function(
            "document.querySelectorAll('mjx-container').length > 0", timeout=60_000
        )
        page.evaluate("MathJax.startup.promise")
        assert (
            page.evaluate("document.querySelectorAll('.math:not(:has(mjx-container))').length") == 0
        )
        page.close()
