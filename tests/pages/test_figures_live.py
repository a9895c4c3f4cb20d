"""Attention views and step sliders as a reader uses them: keyboard only, script blocked, and on paper."""

import importlib.util
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from browser_tools import ROOT, Visit, served
from playwright.sync_api import expect

from circuitkit import figures
from circuitkit.figures import _live as live

spec = importlib.util.spec_from_file_location(
    "offline", ROOT / "book/_ext/circuitkit_book/offline.py"
)
offline = importlib.util.module_from_spec(spec)
spec.loader.exec_module(offline)

LONG = [f" t{i}" for i in range(40)]
# What a canvas writes, level on one axis and turned on the other.
WRITTEN = """const fill = CanvasRenderingContext2D.prototype.fillText;
window.written = {level: [], turned: []};
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.written[Math.abs(this.getTransform().b) > 0.1 ? "turned" : "level"].push(text);
    return fill.call(this, text, ...rest);
};"""
TOKENS = ["<bos>", " the", " cat", " sat"]
PATTERNS = np.tril(np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 4)))


def draw(step):
    fig, ax = plt.subplots(figsize=(2, 1.5))
    ax.plot([0, 1], [0, step])
    return fig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A page that stands where a page of the book stands: the script in _static beside it."""
    made = tmp_path_factory.mktemp("live")
    view = figures.attention(
        TOKENS, PATTERNS, ["L0H0", "L0H1"], alt="Both heads look back at random"
    )
    slider = figures.frames(
        draw, [0, 10, 20], alt=lambda step: f"At step {step} the line ends at {step}"
    )
    page = (
        "<!doctype html><html lang='en' data-content_root='./'><head><title>t</title><link rel='icon' href='data:,'>"
        "<link rel='stylesheet' href='_static/attention.css'><link rel='stylesheet' href='_static/circuitkit.css'>"
        "<script defer src='_static/attention.js'></script></head><body><main class='bd-content'><h1>Figures</h1>"
        f"{view._repr_html_()}{slider._repr_html_()}</main></body></html>"
    )
    (made / "page.html").write_text(page)
    (made / "blocked.html").write_text(page.replace("./", "./nowhere/"))
    long = figures.attention(
        LONG,
        np.tril(np.ones((40, 40))) / np.arange(1, 41)[:, None],
        alt="It looks everywhere alike",
    )
    (made / "long.html").write_text(page.replace(view._repr_html_(), long._repr_html_()))
    (made / "_static").mkdir()
    (made / "_static/circuitkit.css").write_text((ROOT / "book/_static/circuitkit.css").read_text())
    (made / "_static/attention.css").write_text(live.part("css"))
    (made / "_static/attention.js").write_text(live.part("js") + offline.BRING)
    (made / "_static/circuitsvis.js").write_text(live.circuitsvis())
    return made


@pytest.fixture(scope="module")
def visit(browser, folder):
    with served(folder) as address:
        opened = Visit(browser, address, "page.html", "light", "phone")
        yield opened
        opened.context.close()


def test_heads_are_chosen_with_the_keyboard(visit):
    heads = visit.page.locator(".ck-head")
    expect(heads.nth(0)).to_have_attribute("aria-pressed", "true")
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Tab")
    expect(heads.nth(1)).to_be_focused()
    visit.page.keyboard.press("Enter")
    expect(heads.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(visit.page.locator(".ck-title")).to_have_text("L0H1")
    expect(visit.page.locator(".ck-view canvas")).to_have_attribute(
        "aria-label", re.compile("Pattern of L0H1")
    )


def test_the_slider_moves_with_the_keyboard(visit):
    slider, image = visit.page.locator(".ck-slider input"), visit.page.locator(".ck-frames img")
    expect(image).to_have_attribute("alt", "At step 20 the line ends at 20")
    last = image.get_attribute("src")
    slider.focus()
    visit.page.keyboard.press("ArrowLeft")
    expect(image).to_have_attribute("alt", "At step 10 the line ends at 10")
    expect(visit.page.locator(".ck-slider output")).to_have_text("training step 10")
    assert image.get_attribute("src") != last
    visit.page.keyboard.press("End")
    assert image.get_attribute("src") == last


def test_nothing_is_wrong_with_the_page(visit):
    assert (visit.errors, visit.outside, visit.sideways(), visit.violations()) == ([], [], [], [])


def test_the_live_view_takes_the_place_of_the_still_picture(visit):
    assert visit.page.locator(".ck-view canvas").is_visible()
    assert not visit.page.locator(".ck-still").is_visible()


def test_the_view_is_as_wide_as_a_phone(visit):
    box = visit.page.locator(".ck-view canvas").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize("width", [390, 1280])
def test_every_row_and_column_of_a_sentence_has_its_name(browser, folder, width):
    with served(folder) as address:
        page = browser.new_page(viewport={"width": width, "height": 844})
        page.add_init_script(WRITTEN)
        page.goto(f"{address}/long.html")
        page.locator(".ck-attention").scroll_into_view_if_needed()
        expect(page.locator(".ck-attention")).to_have_attribute("data-live", "ready")
        page.wait_for_timeout(300)
        written = page.evaluate("written")
        for axis in ("level", "turned"):
            assert {f"·{token.strip()} ({i})" for i, token in enumerate(LONG)} <= {
                *written[axis]
            }, axis
        zoom = page.locator(".ck-zoom")
        zoom.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert (zoom.evaluate("box => box.scrollLeft") > 0) == (
            zoom.evaluate("box => box.scrollWidth - box.clientWidth") > 0
        )
        page.close()


def test_without_the_script_the_still_view_remains(browser, folder):
    """A blocked script leaves heatmaps, names and table, and no half-built view."""
    with served(folder) as address:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(f"{address}/blocked.html")
        page.wait_for_timeout(300)
        assert page.locator("svg.ck-map").count() == 2
        assert page.locator(".ck-still").is_visible()
        assert page.locator(".ck-view").count() == 0
        page.locator("details.ck-table summary").click()
        expect(page.locator("table caption")).to_be_visible()
        page.close()


def test_paper_shows_the_stills(visit):
    visit.page.emulate_media(media="print")
    assert visit.page.locator("svg.ck-map").first.is_visible()
    assert visit.page.locator(".ck-still").is_visible()
    assert not visit.page.locator(".ck-zoom").is_visible()
    visit.page.emulate_media(media="screen")
