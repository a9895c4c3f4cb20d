"""Attention views: by keyboard, on a phone, without the script, on paper, and in notebooks."""

import re
from urllib.parse import urlparse

import nbformat
import numpy as np
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import expect

from circuitkit import figures
from circuitkit.figures.pictures import STILL
from tests.support.site import DESKTOP, HTML, served
from tools.notebooks import execute

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


# How JupyterLab shows outputs: it sets their text, and makes each script again so that it runs. A loader of modules is there.
INSERT = """outputs => {
    window.define = Object.assign(() => { throw new Error("a module without a name"); }, {amd: true});
    for (const output of outputs) {
        const cell = document.body.appendChild(document.createElement("div"));
        cell.innerHTML = output;
        for (const script of cell.querySelectorAll("script")) {
            const again = document.createElement("script");
            for (const {name, value} of script.attributes) again.setAttribute(name, value);
            again.textContent = script.textContent;
            script.replaceWith(again);
        }
    }
}"""


def random_view():
    patterns = np.tril(np.random.default_rng(0).dirichlet(np.ones(30), size=(2, 30)))
    return figures.attention(TOKENS, patterns, ["L0H0", "L0H1"], alt="Both heads attend at random")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    body = f"<main class='bd-content'><h1>t</h1>{random_view()._repr_html_()}</main>"
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


def require_live(page, count: int) -> None:
    """Scroll to each view, and wait until circuitsvis has drawn it; a click on a head draws that head."""
    views = page.locator(".ck-attention")
    expect(views).to_have_count(count)
    for number in range(count):
        view = views.nth(number)
        view.scroll_into_view_if_needed()
        expect(view).to_have_attribute("data-live", "ready", timeout=30_000)
        last = view.locator(".ck-head").last
        last.press("Enter")
        name = last.locator("span").inner_text()
        expect(view.locator(".ck-view canvas")).to_have_attribute("aria-label", re.compile(name))
        assert not view.locator(".ck-still").is_visible()


def test_every_output_of_a_notebook_is_live_and_works_alone(open_page, monkeypatch):
    monkeypatch.delenv(STILL)
    output = random_view()._repr_html_()
    opened = open_page("about:blank", theme="dark")
    for outputs in ([output, output], [output]):  # together as in JupyterLab, and alone as in Colab
        opened.go("about:blank")
        opened.page.evaluate(INSERT, outputs)
        require_live(opened.page, len(outputs))
        assert opened.too_wide() == []
        assert opened.problems == []
    opened.page.evaluate("delete window.define")  # axe would register itself there
    assert opened.accessibility_faults(".ck-attention") == []
    opened.page.emulate_media(media="print")
    expect(opened.page.locator(".ck-still")).to_be_visible()


@pytest.mark.weekly
@pytest.mark.parametrize(
    "name", ["models-and-heads", "3-induction-heads/induction-in-a-trained-model"]
)
def test_an_exported_notebook_of_the_book_is_live_without_another_host(
    open_page, monkeypatch, tmp_path, name
):
    monkeypatch.delenv(STILL)
    monkeypatch.delitem(execute.ENVIRONMENT, STILL)
    path = execute.ROOT / f"book/{name}.ipynb"
    count = path.read_text("utf-8").count('<figure class=\\"ck-attention')
    text = execute.execute(path)
    print(f"{name}: {len(text):,} characters with {count} live views")
    exporter = HTMLExporter()
    page, _ = exporter.from_notebook_node(nbformat.reads(text, as_version=4))
    (tmp_path / "page.html").write_text(page, "utf-8")
    opened = open_page("about:blank", width=DESKTOP)
    asked = []
    opened.page.on("request", lambda request: asked.append(request.url))
    opened.go((tmp_path / "page.html").as_uri())
    require_live(opened.page, count)
    # nbconvert's own page asks for its loader of modules and for MathJax, and gets neither
    theirs = {urlparse(str(url)).netloc for url in exporter.trait_values().values()}
    assert {urlparse(url).netloc for url in asked} <= {*theirs, ""}
