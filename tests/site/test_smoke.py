"""Every page of the built book, opened once in a browser at the width of a phone."""

import pytest

from tests.support.site import OpenPage, pages

OTHERS = ["search.html", "404.html"]


@pytest.fixture(scope="module")
def tab(browser, site):
    """One tab for all pages, because a new one would compile every script again."""
    opened = OpenPage(browser, f"{site}/404.html")
    yield opened
    opened.context.close()


#: One page of each kind, and those with a lab, a training, a game, many formulas or a wide table; the others are opened weekly.
PAGES = [
    "book/intro.html",
    "book/1-residual-stream/circuit-in-one-picture.html",
    "book/2-qk-and-ov/index.html",
    "book/3-induction-heads/how-induction-forms.html",
    "book/3-induction-heads/exercises.html",
    "book/4-mlps-as-heads/appendix-omega.html",
    "book/5-superposition/a-gate-in-a-language-model.html",
    "book/lab.html",
    "book/born-in-your-tab.html",
    "book/circuit-of-the-day.html",
    "book/models-and-heads.html",
    "book/claims.html",
    "book/api/models.html",
]
#: Pages on which axe-core is run at every change; weekly it is run on all of them.
ACCESSIBLE = [
    "book/intro.html",
    "book/1-residual-stream/circuit-in-one-picture.html",
    "book/lab.html",
]
REST = [name for name in [*pages(), "genindex.html"] if name not in PAGES]


@pytest.mark.parametrize(
    "name", [*PAGES, *OTHERS, *(pytest.param(name, marks=pytest.mark.weekly) for name in REST)]
)
def test_page_loads_without_errors_outside_requests_or_sideways_scroll(tab, site, name):
    opened = tab
    opened.go(f"{site}/{name}")
    opened.read()
    assert opened.page.title()
    assert opened.problems == []
    assert opened.missing_images() == []
    assert opened.too_wide() == []
    assert opened.page.locator("mjx-merror").count() == 0, "a formula is not valid TeX"
    assert name not in ACCESSIBLE or opened.accessibility_faults() == []


PAGE = """<!doctype html><html lang='en'><head><title>t</title><link rel='icon' href='data:,'></head>
<body><main><h1>Title</h1><p style='color: #bbb; background: #fff'>faint</p><div style='width: 900px'>wide</div>
<img src='none.png' alt='A picture'><script>fetch('https://example.org/x').catch(() => 0)</script>
<script>console.error('broken')</script><script>undefinedName()</script></main></body></html>"""


def test_faults_of_a_page_are_found(open_page, tmp_path):
    (tmp_path / "page.html").write_text(PAGE)
    opened = open_page((tmp_path / "page.html").as_uri())
    opened.page.wait_for_timeout(100)
    for words in ("console error: broken", "exception", "request to another host"):
        assert any(words in problem for problem in opened.problems), words
    assert opened.missing_images()
    assert opened.too_wide()
    assert opened.accessibility_faults()
