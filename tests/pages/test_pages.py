"""Every page of the book in headless Chromium, without a network: light and dark, at a desk and on a phone.

A page is loaded twice, light at a desk and dark on a phone, and turned to the other theme there. No page transfers more
than three megabytes from a host that compresses, and nothing is loaded twice.
"""

import random
from collections import Counter
from functools import partial

import browser_tools
import pytest
from browser_tools import HTML, NoFrame, Visit, pages, read_to_its_end
from playwright.sync_api import Error

from tools.publish.lighthouse import served

LOADS = {"desktop": "light", "phone": "dark"}
OTHER = {"light": "dark", "dark": "light"}
MOST = 3_000_000

# Each fault on a page of its own, with the check that must find it.
FAULTY = {
    "console": ("<script>console.error('broken')</script>", lambda visit: visit.errors),
    "exception": ("<script>undefinedName()</script>", lambda visit: visit.errors),
    "outside": (
        "<script>fetch('https://example.org/x').catch(() => 0)</script>",
        lambda visit: visit.outside,
    ),
    "missing": (
        "<img src='none.png' alt='A picture of nothing'>",
        lambda visit: visit.missing_images(),
    ),
    "silent": (
        "<div class='bd-content'><article><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='></article></div>",
        lambda visit: visit.silent_figures(),
    ),
    "wide": ("<div style='width: 900px'>wide</div>", lambda visit: visit.sideways()),
    "contrast": (
        "<p style='color: #bbb; background: #fff'>faint</p>",
        lambda visit: visit.violations(),
    ),
    "one of many": (
        f"<pre>{'<b>word</b> ' * 50}<i style='background: #444'><b>word</b></i></pre>",
        lambda visit: visit.violations(),
    ),
    "faint word of code": (
        f"<style>.f {{color: #bbb}}</style><pre>{'<span class=k><span>word</span></span> ' * 50}<span class='k f'>word</span></pre>",
        lambda visit: visit.violations(),
    ),
    "link in code": (
        f"<pre>{'<span class=k>word</span> ' * 50}<span class=k><a href='sound.html'><span class=k> </span></a></span></pre>",
        lambda visit: visit.violations(),
    ),
    "hidden word in a button": (
        "<style>.h {display: none}</style><pre><span class=k>word</span><button><span class=h>word</span></button></pre>",
        lambda visit: visit.violations(),
    ),
    "dark only": (
        "<style>[data-theme=dark] body {background: #222}</style><p>black on grey</p>",
        lambda visit: visit.turn("dark") or visit.violations(),
    ),
    "dark and no colour": (
        "<style>.x {display: none} [data-theme=dark] .x {display: block}</style><input class='x'>",
        lambda visit: visit.violations() or visit.turn("dark") or visit.violations(),
    ),
    "faint in the dark": (
        "<style>[data-theme=dark] body {background: #222; color: #444}</style><p>words</p>",
        lambda visit: visit.violations() or visit.turn("dark") or visit.violations(),
    ),
    "heavy": ("<script src='heavy.js'></script>", lambda visit: too_much(visit.loaded())),
    "twice": (
        "<script src='small.js'></script><script>fetch('small.js', {cache: 'reload'})</script>",
        lambda visit: too_much(visit.loaded()),
    ),
}
PAGE = "<!doctype html><html lang='en'><head><title>t</title><link rel='icon' href='data:,'></head><body><main><h1>Title</h1>{}</main></body></html>"


def too_much(loaded: list[tuple[str, int]]) -> list[str]:
    """What makes a page heavy, and what it loads more than once."""
    total, counts = sum(size for _, size in loaded), Counter(path for path, _ in loaded)
    heaviest = sorted(loaded, key=lambda item: -item[1])[:5]
    return [f"{total} bytes: {heaviest}"] * (total > MOST) + [
        path for path, count in counts.items() if count > 1
    ]


@pytest.fixture(scope="module")
def visit(browser):
    """Open a page of the built book; closed by the caller."""
    assert HTML.is_dir(), "the book is not built; run `make book` first"
    with served(HTML) as address:
        yield partial(Visit, browser, address)


@pytest.mark.parametrize("width", LOADS)
@pytest.mark.parametrize("page", pages())
def test_page(visit, page, width):
    opened = visit(page, LOADS[width], width)
    try:
        loaded = opened.loaded()
        assert sum(size for _, size in loaded) > 50_000  # the log was read
        faults = {f"{page}, {width}: loads": too_much(loaded)}
        assert opened.page.title()
        for theme in (LOADS[width], OTHER[LOADS[width]]):
            if theme != opened.theme:
                opened.turn(theme)
            assert opened.page.evaluate("document.documentElement.dataset.theme") == theme
            found = {
                "images missing": opened.missing_images(),
                "figures without alt text": opened.silent_figures(),
                "sideways scroll": opened.sideways(),
                "accessibility": opened.violations(),
                "errors": opened.errors,
                "requests to other hosts": opened.outside,
            }
            faults |= {f"{page}, {width}, {theme}: {kind}": what for kind, what in found.items()}
        assert {place: what for place, what in faults.items() if what} == {}
    finally:
        opened.context.close()


@pytest.fixture(scope="module")
def faulty(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faulty")
    for name, (body, _) in FAULTY.items():
        (folder / f"{name}.html").write_text(PAGE.format(body))
    (folder / "sound.html").write_text(PAGE.format("<p>Nothing is wrong here.</p>"))
    (folder / "heavy.js").write_text("//" + random.Random(0).randbytes(MOST).hex())
    (folder / "small.js").write_text("//")
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


def test_code_is_whole_again_after_it_was_judged(faulty):
    opened = faulty("faint word of code.html", "light", "phone")
    before = opened.page.inner_html("body")
    assert opened.violations()
    assert (
        opened.page.evaluate("window.unwrapped.length") == 98
    )  # two each, all but the first word and the faint one
    assert opened.page.inner_html("body").replace(' data-look=""', "") == before
    opened.context.close()


def test_a_page_that_is_never_there_ends_with_a_sentence(browser):
    page = browser.new_page()
    page.set_content(
        PAGE.format("<script>window.MathJax = {startup: {promise: new Promise(() => {})}}</script>")
    )
    with pytest.raises(Error, match="not there after 200 ms: the formulas"):
        read_to_its_end(page, 200)
    page.evaluate("window.requestAnimationFrame = () => 0")
    with pytest.raises(NoFrame, match="no frame for 100 ms at 0 px"):
        read_to_its_end(page, 2_000, 100)
    page.close()


def test_a_tab_that_draws_nothing_is_opened_again_but_not_for_ever(faulty, monkeypatch):
    opened, stopped = [], 2

    def read(page):
        opened.append(page)
        if len(opened) <= stopped:
            raise NoFrame("no frame")

    monkeypatch.setattr(browser_tools, "read_to_its_end", read)
    visit = faulty("sound.html", "light", "phone")
    assert len(opened) == 3
    assert visit.page is opened[-1]
    assert [page.is_closed() for page in opened] == [True, True, False]
    visit.context.close()
    opened, stopped = [], 3
    with pytest.raises(NoFrame):
        faulty("sound.html", "light", "phone")
    assert len(opened) == 3
    assert all(page.is_closed() for page in opened)
