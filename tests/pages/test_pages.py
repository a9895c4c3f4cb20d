"""Every page of the book in headless Chromium, without a network: light and dark, at a desk and on a phone."""

from functools import partial

import pytest
from browser_tools import HTML, WIDTHS, Visit, pages, read_to_its_end, served
from playwright.sync_api import Error

THEMES = ("light", "dark")

# Each fault on a page of its own, with the check that must find it.
FAULTY = {
    "console": ("<script>console.error('broken')</script>", lambda visit: visit.errors),
    "exception": ("<script>undefinedName()</script>", lambda visit: visit.errors),
    "outside": ("<script>fetch('https://example.org/x').catch(() => 0)</script>", lambda visit: visit.outside),
    "missing": ("<img src='none.png' alt='A picture of nothing'>", lambda visit: visit.missing_images()),
    "silent": (
        "<div class='bd-content'><article><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='></article></div>",
        lambda visit: visit.silent_figures(),
    ),
    "wide": ("<div style='width: 900px'>wide</div>", lambda visit: visit.sideways()),
    "contrast": ("<p style='color: #bbb; background: #fff'>faint</p>", lambda visit: visit.violations()),
}
PAGE = "<!doctype html><html lang='en'><head><title>t</title><link rel='icon' href='data:,'></head><body><main><h1>Title</h1>{}</main></body></html>"


@pytest.fixture(scope="module")
def visit(browser):
    """Open a page of the built book; closed by the caller."""
    assert HTML.is_dir(), "the book is not built; run `make book` first"
    with served() as address:
        yield partial(Visit, browser, address)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", pages())
def test_page(visit, page, width, theme):
    opened = visit(page, theme, width)
    try:
        opened.screenshot()
        assert opened.page.evaluate("document.documentElement.dataset.theme") == theme
        assert opened.page.title()
        found = {
            "images missing": opened.missing_images(),
            "figures without alt text": opened.silent_figures(),
            "sideways scroll": opened.sideways(),
            "accessibility": opened.violations(),
            "errors": opened.errors,
            "requests to other hosts": opened.outside,
        }
        assert {kind: faults for kind, faults in found.items() if faults} == {}
    finally:
        opened.context.close()


@pytest.fixture(scope="module")
def faulty(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faulty")
    for name, (body, _) in FAULTY.items():
        (folder / f"{name}.html").write_text(PAGE.format(body))
    (folder / "sound.html").write_text(PAGE.format("<p>Nothing is wrong here.</p>"))
    with served(folder) as address:
        yield partial(Visit, browser, address)


@pytest.mark.parametrize("name", FAULTY)
def test_the_checks_can_fail(faulty, name):
    opened = faulty(f"{name}.html", "light", "phone")
    opened.page.wait_for_timeout(100)
    assert FAULTY[name][1](opened)
    opened.context.close()


def test_the_checks_pass_a_sound_page(faulty):
    opened = faulty("sound.html", "light", "phone")
    assert [check(opened) for _, check in FAULTY.values()] == [[]] * len(FAULTY)
    opened.context.close()


def test_a_page_that_is_never_there_ends_with_a_sentence(browser):
    page = browser.new_page()
    page.set_content(PAGE.format("<script>window.MathJax = {startup: {promise: new Promise(() => {})}}</script>"))
    with pytest.raises(Error, match="not there after 200 ms"):
        read_to_its_end(page, 200)
    page.close()
