"""A page is light and holds still: short style sheet, pictures in files, one theme from the first frame, formulas with room."""

import re
import sys

import pytest
from browser_tools import HTML, ROOT, served

sys.path[:0] = [str(ROOT / "book/_ext")]
from circuitkit_book import formulas, light, styles  # noqa: E402

CHAPTER = "book/04-mlps-as-attention.html"
ROOM = """[...document.querySelectorAll('article span.math')].filter(one => one.checkVisibility() && one.querySelector('mjx-container')).map(one => [
    parseFloat(one.style.getPropertyValue('--ck-wide')),
    one.querySelector('mjx-container').getBoundingClientRect().width / parseFloat(getComputedStyle(one).fontSize)])"""
SHIFTS = """window.shifts = []; new PerformanceObserver(list => list.getEntries().forEach(one => shifts.push(one.value)))
    .observe({type: "layout-shift", buffered: true});"""


@pytest.mark.parametrize(
    ("css", "left"),
    [
        (".a{x:1}.b{x:2}", ".a{x:1}"),
        (".b,.a:hover{x:1}", ".a:hover{x:1}"),
        ("p .a.b{x:1}", ""),
        ("p:not(.b){x:1}", "p:not(.b){x:1}"),
        ("@media print{.b{x:1}}", ""),
        ("@media print{.b{x:1}.a{x:2}}", "@media print{.a{x:2}}"),
        (
            "@font-face{src:url(b.woff)}@keyframes b{to{x:1}}",
            "@font-face{src:url(b.woff)}@keyframes b{to{x:1}}",
        ),
        ('.a::before{content:"}.b{"}', '.a::before{content:"}.b{"}'),
        (".c-up{x:1}.c-d-up{x:2}.d-up{x:3}", ".c-up{x:1}.c-d-up{x:2}"),
        (".a[data-x='.b']{x:1;y:2}", ".a[data-x='.b']{x:1;y:2}"),
    ],
)
def test_rules_for_classes_that_no_page_has_are_left_out(css, left):
    assert styles.prune(css, {"a", "data-x", "c-"}) == left


def test_the_style_sheet_of_the_book_has_no_rule_for_a_class_of_nobody():
    css = (HTML / light.SHEET).read_text("utf-8")
    assert len(css) < 200_000
    assert all(
        f".cl-{kind}" in css for kind in ("up", "down", "cut", "out")
    )  # the lab joins these names
    assert ".carousel-item" in css  # a script of the theme names it
    assert ".btn-outline-warning" not in css


def test_no_page_carries_a_picture_in_its_text():
    heavy = [
        page.name
        for page in HTML.glob("book/*.html")
        if re.search(r"data:image/png;base64,[\w+/=]{2000}", page.read_text("utf-8"))
    ]
    assert heavy == []


def test_a_theme_that_changed_its_question_about_scrolling_stops_the_build(tmp_path):
    script = tmp_path / "theme.js"
    script.write_text(
        'f(),"complete"===document.readyState?O():window.addEventListener("load",O)})();', "utf-8"
    )
    light.calm(script)
    assert script.read_text("utf-8") == "f()})();"
    with pytest.raises(ValueError, match="no longer asks what scrolls"):
        light.calm(script)


@pytest.fixture(scope="module")
def page(browser):
    with served() as address:
        opened = browser.new_page(viewport={"width": 412, "height": 823})
        opened.add_init_script(SHIFTS)
        opened.goto(f"{address}/{CHAPTER}", wait_until="load")
        yield opened
        opened.close()


def test_a_page_holds_still_while_it_loads(page):
    page.wait_for_timeout(500)
    assert sum(page.evaluate("shifts")) < 0.02
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_formula_has_about_the_room_that_it_takes(page):
    page.mouse.wheel(0, 300)
    page.wait_for_function("document.querySelector('mjx-container')", timeout=60_000)
    page.evaluate("MathJax.startup.promise")
    room = page.evaluate(ROOM)
    close = [abs(guess - true) < 0.75 for guess, true in room]
    assert len(room) >= 50
    assert sum(close) > 0.9 * len(close), sorted(room, key=lambda pair: -abs(pair[0] - pair[1]))[:5]
    assert (
        formulas.width("x")
        < formulas.width(r"x + \frac{x}{2}")
        < formulas.width(r"\sqrt{x} = x + \frac{x + 1}{2}")
    )


SEEN = "[...document.querySelectorAll('.math')].filter(one => one.checkVisibility({visibilityProperty: true}) && !one.querySelector('mjx-container')).length"


def test_nobody_reads_tex_unless_mathjax_does_not_come(browser):
    with served() as address:
        opened = browser.new_page()
        waiting = []
        opened.route("**/mathjax/startup.js*", lambda route: waiting.append(route))
        opened.goto(f"{address}/{CHAPTER}")
        with opened.expect_request("**/mathjax/startup.js*"):
            opened.mouse.wheel(0, 300)
        assert opened.evaluate(SEEN) == 0
        waiting[0].abort()
        opened.wait_for_function(f"{SEEN} > 50")
        opened.close()
        context = browser.new_context(java_script_enabled=False)
        plain = context.new_page()
        plain.goto(f"{address}/{CHAPTER}")
        assert plain.locator("article section > p > span.math").first.is_visible()
        context.close()
