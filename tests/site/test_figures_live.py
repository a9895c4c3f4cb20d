"""Attention views: by keyboard, on a phone, without the script, and on paper."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from circuitkit import figures
from tests.support.site import HTML, served

TOKENS = ["<bos>", *(f" t{i}" for i in range(1, 30))]
HEAD = (
    "<!doctype html><html lang='en' data-content_root='./'><head><title>t</title>"
    "<link rel='icon' href='data:,'><link rel='stylesheet' href='_static/styles/book.css'>"
    "<script defer src='_static/attention.js'></script></head><body>"
)
# Collects what a canvas writes, along each axis.
RECORD_TEXT = """const fill = CanvasRenderingContext2D.prototype.fillText;
window.written = {level: [], turned: []};
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.written[Math.abs(this.getTransform().b) > 0.1 ? "turned" : "level"].push(text);
    return fill.call(this, text, ...rest);
};"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    patterns = np.tril(np.random.default_rng(0).dirichlet(np.ones(30), size=(2, 30)))
    view = figures.attention(TOKENS, patterns, ["L0H0", "L0H1"], alt="Both heads attend at random")
    body = f"<main class='bd-content'><h1>t</h1>{view._repr_html_()}</main>"
    (folder / "page.html").write_text(HEAD + body)
    (folder / "_static").symlink_to(HTML / "_static")
    with served(folder) as place:
        yield f"{place}/page.html"


@pytest.fixture
def opened(open_page, address):
    opened = open_page(address)
    opened.page.locator(".ck-attention").scroll_into_view_if_needed()
    expect(opened.page.locator(".ck-attention")).to_have_attribute("data-live", "ready")
    return opened


def test_view_replaces_the_still_picture_and_fits_a_phone(opened):
    canvas = opened.page.locator(".ck-view canvas")
    expect(canvas).to_be_visible()
    assert not opened.page.locator(".ck-still").is_visible()
    assert opened.too_wide() == []
    assert opened.problems == []
    assert opened.accessibility_faults() == []


def test_heads_are_chosen_with_the_keyboard(opened):
    second = opened.page.locator(".ck-head").nth(1)
    second.press("Enter")
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(opened.page.locator(".ck-title")).to_have_text("L0H1")
    label = re.compile("Pattern of L0H1")
    expect(opened.page.locator(".ck-view canvas")).to_have_attribute("aria-label", label)


def test_every_row_and_column_shows_its_token(open_page, address):
    page = open_page("about:blank").page
    page.add_init_script(RECORD_TEXT)
    page.goto(address)
    page.locator(".ck-attention").scroll_into_view_if_needed()
    expect(page.locator(".ck-attention")).to_have_attribute("data-live", "ready")
    page.wait_for_timeout(300)
    for axis, written in page.evaluate("written").items():
        assert {f"·t{i} ({i})" for i in range(1, 30)} <= set(written), axis


def test_still_picture_and_table_remain_without_the_script(open_page, address):
    page = open_page(address, java_script_enabled=False).page
    assert page.locator("svg.ck-map").count() == 2
    expect(page.locator(".ck-still")).to_be_visible()
    page.locator("details.ck-table summary").click()
    expect(page.locator("table caption")).to_be_visible()


def test_paper_shows_the_still_picture(opened):
    opened.page.emulate_media(media="print")
    expect(opened.page.locator(".ck-still")).to_be_visible()
    assert not opened.page.locator(".ck-zoom").is_visible()
