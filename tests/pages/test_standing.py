"""What a link leads to stands in view when the page has settled; formulas open at their left end; nothing is raw."""

import re
from functools import partial

import pytest
from browser_tools import HTML, Visit, pages, read_to_its_end, served
from bs4 import BeautifulSoup

# A heading, an equation, a term and names of the library, each far down on its page; reached in a window of this width.
PLACES = [
    ("book/03-induction-heads.html", "in-a-pretrained-model", "desktop"),
    ("book/04-mlps-as-attention.html", "what-it-costs", "phone"),
    ("book/05-attention-superposition.html", "eq-5-2", "phone"),
    ("book/02-qk-and-ov-circuits.html", "eq-2-6", "desktop"),
    ("book/glossary.html", "term-softmax", "phone"),
    ("book/api/superposition.html", "circuitkit.superposition.two_head_model", "phone"),
    ("book/api/circuits.html", "circuitkit.circuits.skip_trigrams", "desktop"),
    ("book/03-induction-heads.html", "eight-wires", "wide"),
    ("book/02-qk-and-ov-circuits.html", "eq-2-6", "tablet"),
    ("book/glossary.html", "term-softmax", "tablet"),
    ("book/api/superposition.html", "circuitkit.superposition.two_head_model", "wide"),
]
TOP = "anchor => document.getElementById(anchor).getBoundingClientRect().top"
CLICK = "anchor => document.querySelector('article').appendChild(Object.assign(document.createElement('a'), {href: '#' + anchor})).click()"
SETTLED = """async () => {
    await window.MathJax?.startup?.promise;
    await document.fonts.ready;
    let height = 0;
    while (height !== (height = document.documentElement.scrollHeight)) await new Promise(done => setTimeout(done, 300));
}"""


@pytest.fixture(scope="module")
def visit(browser):
    assert HTML.is_dir(), "the book is not built; run `make book` first"
    with served() as address:
        yield partial(Visit, browser, address)


@pytest.mark.parametrize(("name", "anchor", "width"), PLACES)
def test_what_a_link_leads_to_stands_in_view(visit, name, anchor, width):
    opened = visit("search.html", "light", width)
    page = opened.page
    page.goto(page.url.replace("search.html", f"{name}#{anchor}"))
    page.evaluate(SETTLED)
    by_link = page.evaluate(TOP, anchor)
    # The same from the top of the page, as the list of contents leads there; then the reader moves, and nothing holds her.
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    page.evaluate(CLICK, anchor)
    page.evaluate(SETTLED)
    by_click = page.evaluate(TOP, anchor)
    page.mouse.move(100, 300)
    page.mouse.wheel(0, -2000)
    page.wait_for_timeout(300)
    free = page.evaluate(TOP, anchor)
    opened.context.close()
    assert 0 <= by_link <= 200
    assert 0 <= by_click <= 200
    assert free > 800


@pytest.mark.parametrize("place", ["api/figures.html#circuitkit.figures.attention", "glossary.html#term-softmax"])
def test_where_a_link_led_is_readable(visit, place):
    opened = visit(f"book/{place}", "light", "phone")
    faults = opened.violations()
    opened.turn("dark")
    faults += opened.violations()
    opened.context.close()
    assert faults == []


def test_formulas_open_at_their_left_end_and_say_that_they_scroll(visit):
    opened = visit("book/05-attention-superposition.html", "light", "phone")
    boxes = opened.page.evaluate(
        """[...document.querySelectorAll('div.math')].map(box => [box.id || box.textContent.slice(0, 30),
            Math.round(box.querySelector('mjx-math').getBoundingClientRect().left - box.getBoundingClientRect().left),
            box.scrollLeft, box.scrollWidth - box.clientWidth > 1, box.classList.contains('ck-more')])"""
    )
    assert any(scrolls for *_, scrolls, _ in boxes)
    assert [box for box in boxes if box[1] < 0 or box[2] or box[3] != box[4]] == []
    pre = "[...document.querySelectorAll('article pre')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)"
    assert opened.page.evaluate(f"{pre}.filter(e => !e.classList.contains('ck-more')).length") == 0
    opened.context.close()


def test_code_that_draws_is_folded_and_opens_with_one_key(visit):
    opened = visit("book/03-induction-heads.html", "light", "desktop")
    fold = opened.page.locator("details.hide.above-input", has_text="Show the code that draws this").first
    fold.locator("summary").focus()
    opened.page.keyboard.press("Enter")
    assert "plt.subplots" in fold.inner_text()
    opened.context.close()


@pytest.mark.parametrize("name", ["genindex.html", "search.html"])
def test_no_page_beside_the_contents_scrolls_sideways(visit, name):
    opened = visit(name, "light", "phone")
    read_to_its_end(opened.page)
    assert opened.sideways() == []
    opened.context.close()


@pytest.mark.parametrize("name", pages())
def test_nothing_is_raw_and_only_formulas_bring_mathjax(name):
    text = (HTML / name).read_text("utf-8")
    assert ("mathjax/tex-chtml.js" in text) == ('class="math' in text)
    article = BeautifulSoup(text, "html.parser").select_one("article")
    for element in article.select("pre, code, .sig, .math, .ck-words, script, style, svg"):
        element.decompose()
    assert re.findall(r".{0,30}(?:\$[^$\n]+\$|`|\]\(|\*\*).{0,20}", article.get_text()) == []
