"""On a phone: what is drawn keeps letters that can be read, and what is cut says so. On any page: no name of a checker's type. On paper: light."""

from functools import partial

import pytest
from browser_tools import HTML, Visit, served

# What a reader measures: how small drawings stand, whose box says that there is more, and what stands beside its box.
SMALL = """() => [...document.querySelectorAll('.ck-pan')].map(box => {
    const drawn = box.querySelector('svg, img'), share = drawn.getBoundingClientRect().width / box.style.getPropertyValue('--ck-natural');
    const more = box.scrollWidth - box.clientWidth > 1;
    return [box.parentElement.tagName, drawn.tagName, share, more, box.classList.contains('ck-more'), box.clientWidth];
})"""
LEAST = {"svg": 0.77, "IMG": 0.49}


@pytest.fixture(scope="module")
def visit(browser):
    with served() as address:
        yield partial(Visit, browser, address)


@pytest.mark.parametrize(
    "page", ["01-residual-stream", "04-mlps-as-attention", "induction-in-smollm2"]
)
def test_drawings_are_not_smaller_than_their_words_allow(visit, page):
    opened = visit(f"book/{page}.html", "light", "phone")
    opened.page.wait_for_timeout(300)
    found = opened.page.evaluate(SMALL)
    opened.context.close()
    assert {kind for _, kind, *_ in found} == set(LEAST)
    assert [row for row in found if row[2] < LEAST[row[1]] or row[3] != row[4]] == []
    assert any(more for *_, more, _, _ in found)  # and so some of them scroll
    assert all(share < 1.01 for _, _, share, *_ in found)  # none is blown up


def test_the_first_picture_has_a_copy_for_phones(visit):
    opened = visit("book/intro.html", "light", "phone")
    picture = opened.page.locator("article img.ck-picture").first
    assert picture.evaluate("image => image.currentSrc").endswith("_static/induction-phone.png")
    assert picture.evaluate(
        "image => image.getBoundingClientRect().height > image.getBoundingClientRect().width"
    )
    opened.context.close()


def test_the_counts_of_the_claims_fit_and_no_line_of_a_claim_says_that_it_scrolls(visit):
    opened = visit("book/claims.html", "light", "phone")
    assert (
        opened.page.evaluate(
            "(box => box.scrollWidth - box.clientWidth)(document.querySelector('.ck-scroll'))"
        )
        <= 1
    )
    assert opened.page.locator("table.ck-claims .ck-more").count() == 0
    assert opened.page.locator("table.ck-claims .ck-links").count() > 100
    opened.context.close()


def test_letters_and_numbers_of_the_still_lab_stand_apart(visit):
    opened = visit("book/lab.html", "light", "phone")
    opened.page.get_by_role("button", name="Start the model").first.click()
    opened.page.wait_for_selector(".cl-lab[data-drawn]:not([aria-busy])", timeout=60_000)
    letters, words = opened.page.evaluate(
        """() => [Math.max(...[...document.querySelectorAll('.cl-port')].map(one => one.getBoundingClientRect().bottom)),
            (range => (range.selectNodeContents(document.querySelector('.cl-bottom')), range.getBoundingClientRect().top))(document.createRange())]"""
    )
    opened.context.close()
    assert letters < words + 2


def test_the_reference_names_types_that_a_reader_knows():
    texts = {page.name: page.read_text("utf-8") for page in HTML.glob("book/api/*.html")}
    assert len(texts) > 8
    assert {
        name: word
        for name, text in texts.items()
        for word in ("beartype", "Annotated", "~typing", "~jaxtyping")
        if word in text
    } == {}


def test_paper_is_light_whatever_the_screen_was(visit):
    """Drawings and code take their colours from the theme; dark ones are hardly seen on paper."""
    opened = visit("book/lab.html", "dark", "desktop")
    theme = "document.documentElement.dataset.theme"
    assert opened.page.evaluate(theme) == "dark"
    seen = opened.page.evaluate(f"""() => {{
        const on = [];
        for (const event of ["beforeprint", "afterprint"]) {{ dispatchEvent(new Event(event)); on.push({theme}); }}
        return on;
    }}""")
    opened.context.close()
    assert seen == ["light", "dark"]
