"""What a link leads to stands in view when the page has settled; formulas open at their left end; nothing is raw."""

import os
import re
from functools import partial

import pytest
from browser_tools import HTML, WIDTHS, Visit, pages, read_to_its_end, served
from bs4 import BeautifulSoup
from playwright.sync_api import expect

WHOLE = (
    os.environ.get("CIRCUITKIT_STANDING") == "whole"
)  # `make standing`: every page in every width
# What links lead to: headings, numbered equations, names of the library, terms.
ANCHORS = """() => [...document.querySelectorAll(
        'article section[id], article div.math[id^=eq-], article dt.sig[id], article dl.glossary dt[id], article dt[id^=term-]')]
    .filter(e => (e.matches('section') ? e.querySelector('h1, h2, h3, h4') : e)?.checkVisibility() || e.closest('details'))
    .map(e => e.id).filter(id => id && !document.querySelector('article section[id]:first-of-type').matches('#' + CSS.escape(id)))"""
# Each anchor by a link on the page and, where the list of contents has one, by that; where it stands, and whether the page ends.
WALK = """async anchors => {
    const frame = () => new Promise(done => requestAnimationFrame(done)), wrong = [];
    const settled = async element => {
        let same = 0, last = null;
        for (let i = 0; i < 300 && same < 4; i++) {
            await frame();
            const now = [element.getBoundingClientRect().top, document.documentElement.scrollHeight].join();
            same = now === last ? same + 1 : 0;
            last = now;
        }
    };
    const stands = element => {
        const top = element.getBoundingClientRect().top, end = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
        return top >= -1 && top <= (end || element.closest('.ck-claim') ? innerHeight - 20 : 200);
    };
    for (const anchor of anchors) {
        const element = document.getElementById(anchor), own = Object.assign(document.createElement('a'), {href: '#' + anchor});
        document.querySelector('article').append(own);
        const links = {link: own, sidebar: document.querySelector(`.bd-sidebar-secondary a[href="#${CSS.escape(anchor)}"]`)};
        for (const [route, link] of Object.entries(links)) {
            if (!link) continue;
            scrollTo({top: route === 'link' ? 0 : document.documentElement.scrollHeight, behavior: 'instant'});
            await frame();
            link.click();
            await new Promise(done => setTimeout(done));
            await settled(element);
            if (!stands(element)) wrong.push([route, anchor, Math.round(element.getBoundingClientRect().top)]);
        }
        own.remove();
    }
    return wrong;
}"""
# Where a thing stands is asked a thousand times a page, and painting all that passes by took two fifths of the time.
UNPAINTED = "body {visibility: hidden}"
TOP = "anchor => document.getElementById(anchor).getBoundingClientRect().top"
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


def walks() -> list[tuple[str, str]]:
    """Every page; in each width by `make standing`, otherwise each page in one, so that all four have their turn."""
    names, widths = pages(), list(WIDTHS)
    return [
        (name, width)
        for i, name in enumerate(names)
        for j, width in enumerate(widths)
        if WHOLE or (i + i // 4) % 4 == j
    ]


@pytest.fixture(scope="module")
def index(visit):
    """By page: the anchors that the search knows, and those that it shows for their own titles."""
    opened = visit("search.html", "light", "phone")
    rows = opened.page.evaluate(
        """() => searchIndex.flatMap(([address, , sections]) => sections.filter(([anchor]) => anchor).map(([anchor, title]) =>
            [address, anchor, bookSearch.search(title).some(page => page.address === address && page.places.some(p => p.anchor === anchor))]))"""
    )
    opened.context.close()
    return rows


def test_the_search_knows_the_way_to_every_place_by_its_title(index):
    assert len(index) > 500
    assert [(address, anchor) for address, anchor, shown in index if not shown] == []


def walk(browser, address, known, name, width):
    """Cold, as a result of the search leads to the last place of a page; then every anchor, by a link and by the sidebar.

    Stops whenever the page is busy for a while, so that others can be walked meanwhile.
    """
    size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
    context = browser.new_context(viewport=size, color_scheme="light", service_workers="block")
    try:
        page = context.new_page()
        page.goto(
            f"{address}/{name}#{known[-1]}" if known else f"{address}/{name}", wait_until="load"
        )
        yield begin(page, SETTLED)
        page.evaluate(BEGUN)
        if known:
            top, bottom = (
                page.evaluate(TOP, known[-1]),
                "scrollY + innerHeight >= document.documentElement.scrollHeight - 2",
            )
            assert (
                -1
                <= top
                <= (WIDTHS[width][1] - 20 if page.evaluate(bottom) or "claim" in known[-1] else 200)
            ), known[-1]
            # Then the reader moves, and nothing holds her.
            page.mouse.move(
                WIDTHS[width][0] // 2, 300
            )  # over the text: the sidebar scrolls by itself
            page.mouse.wheel(0, -3000)
            page.wait_for_function(
                f"([anchor, top]) => ({TOP})(anchor) > top + 300 || !scrollY",
                arg=[known[-1], top],
                timeout=10_000,
            )
        anchors = page.evaluate(ANCHORS)
        page.add_style_tag(content=UNPAINTED)
        yield begin(page, WALK, anchors)
        assert page.evaluate(BEGUN) == []
        assert anchors or len(known) < 2  # a page of one section is where it begins
    finally:
        context.close()


BEGUN = "window.ckBegun"


def begin(page, script: str, given=None) -> None:
    """Start a script in a page and leave it running; `BEGUN` is what it gives."""
    page.evaluate(f"given => {{ {BEGUN} = ({script})(given); }}", given)


AT_ONCE = 4


def together(walks: dict) -> dict:
    """Take walks step by step in turn; what went wrong on each, or None."""
    found = {}
    while walks := {one: steps for one, steps in walks.items() if one not in found}:
        for one, steps in walks.items():
            try:
                next(steps)
            except StopIteration:
                found[one] = None
            except Exception as error:
                found[one] = error
    return found


def test_of_walks_taken_together_each_has_its_own_end():
    def walk(*ends):
        for end in ends:
            yield
            assert end, "it stands elsewhere"

    found = together(
        {"short": walk(True), "wrong": walk(True, False, True), "long": walk(*[True] * 5)}
    )
    assert found["short"] is found["long"] is None
    assert "it stands elsewhere" in str(found["wrong"])


MOVES = {
    "scrolls on": "addEventListener('hashchange', () => setTimeout(() => scrollBy({top: -400, behavior: 'instant'}), 40))",
    "stops short": "document.head.append(Object.assign(document.createElement('style'), {textContent: '* {scroll-margin-top: 300px !important}'}))",
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_away_is_told_painted_or_not(visit, name):
    opened = visit("book/how-tested.html", "light", "desktop")
    anchors = opened.page.evaluate(ANCHORS)[:3]
    opened.page.evaluate(MOVES[name])
    painted = opened.page.evaluate(WALK, anchors)
    opened.page.add_style_tag(content=UNPAINTED)
    unpainted = opened.page.evaluate(WALK, anchors)
    opened.context.close()
    assert (
        {anchor for _, anchor, _ in painted}
        == {anchor for _, anchor, _ in unpainted}
        == set(anchors)
    )


@pytest.fixture(scope="module")
def walked(browser, index):
    """What went wrong on a walk, by page and width. Some are taken at once: most of a walk waits for the next frame."""
    found, all_of_them = {}, walks()

    def of(name: str, width: str) -> Exception | None:
        if (name, width) not in found:
            some = all_of_them[all_of_them.index((name, width)) :][:AT_ONCE]
            places = {
                one: [anchor for at, anchor, _ in index if at.endswith(one[0])] for one in some
            }
            found.update(
                together(
                    {one: walk(browser, address, known, *one) for one, known in places.items()}
                )
            )
        return found[name, width]

    with served() as address:
        yield of


@pytest.mark.parametrize(("name", "width"), walks())
def test_what_a_link_leads_to_stands_in_view(walked, name, width):
    wrong = walked(name, width)
    if wrong is not None:
        raise wrong


@pytest.mark.parametrize(
    "place", ["api/figures.html#circuitkit.figures.attention", "glossary.html#term-softmax"]
)
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
    fold = opened.page.locator(
        "details.hide.above-input", has_text="Show the code that draws this"
    ).first
    fold.locator("summary").focus()
    opened.page.keyboard.press("Enter")
    expect(fold.locator("pre")).to_contain_text("plt.subplots")
    expect(fold.locator("pre")).to_be_visible()
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
