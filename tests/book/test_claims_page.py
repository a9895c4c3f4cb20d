"""The register as a reader uses it: every row on the page, filters by keyboard, links that win, and no script at all."""

import importlib.util
import re
from html.parser import HTMLParser

import pytest
from browser_tools import ROOT, Visit, served
from playwright.sync_api import expect

from circuitkit import claims

spec = importlib.util.spec_from_file_location(
    "claims_page", ROOT / "book/_ext/circuitkit_book/claims.py"
)
page_of = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page_of)
ALL = len(claims.load())


def html() -> str:
    """The page's own parts, as the extension writes them, in a page of their own."""
    source = f"{page_of.counts()}\n\n{page_of.rows()}"
    source = re.sub(r"^## (.+)$", r"</section><section><h2>\1</h2>", source, flags=re.M)
    body = re.sub(r"^```.*$", "", source, flags=re.M)
    return (
        "<!doctype html><html lang='en' data-theme='light'><head><meta charset='utf-8'><title>t</title><link rel='icon' href='data:,'>"
        "<link rel='stylesheet' href='circuitkit.css'><link rel='stylesheet' href='claims.css'>"
        "<style>.bd-content {--pst-color-background: #fff; --pst-color-text-base: #111; --pst-color-text-muted: #444}"
        "</style><script defer src='claims.js'></script></head><body><main class='bd-content'><h1>Claims</h1>"
        f"<section>{body}</section></main></body></html>"
    )


class Rows(HTMLParser):
    """Ids of rows, and where their links lead."""

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "ck-claim" in (given.get("class") or "").split():
            self.ids.append(given["id"])
        if tag == "a":
            self.links.append(given["href"])


def test_every_claim_has_a_row_and_every_link_an_end():
    found = Rows(html())
    assert sorted(found.ids) == sorted(
        f"claim-{claim.id.replace('.', '-')}" for claim in claims.load()
    )
    rows = {link[1:] for link in found.links if link.startswith("#claim")}
    assert rows == set(found.ids)
    pages = {link.partition(".html")[0] for link in found.links if not link.startswith("#")}
    assert pages == {claim.chapter.partition("#")[0] for claim in claims.load() if claim.chapter}


@pytest.mark.parametrize(
    ("value", "tolerance", "text"),
    [
        (0.0203349, 1e-6, "0.02033"),
        (True, 0, "yes"),
        (0.0, 1e-13, "0 (to 1e-13)"),
        (1e-15, 1e-14, "0 (to 1e-14)"),
        (0, 0, "0"),
        (-0.25, 1e-6, "\u22120.25"),
        (49152, 0, "49\u202f152"),
        (4.0, 1e-9, "4"),
        (2.8e-5, 1e-9, "2.8e-5"),
        ("< 1e-3", 0, "&lt; 1e-3"),
        ([1, False], 0, "1, no"),
    ],
)
def test_numbers_as_a_reader_wants_them(value, tolerance, text):
    assert page_of.number(value, tolerance) == text


def test_a_heading_that_does_not_exist_stops_the_build():
    assert page_of.heading("04-mlps-as-attention#what-it-costs") == "Chapter 4: What it costs"
    with pytest.raises(ValueError, match="04-mlps-as-attention has no heading 'no-such'"):
        page_of.heading("04-mlps-as-attention#no-such")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    (folder / "claims.html").write_text(html(), "utf-8")
    for name in ("claims.css", "claims.js", "circuitkit.css"):
        (folder / name).write_text((ROOT / "book/_static" / name).read_text("utf-8"), "utf-8")
    with served(folder) as place:
        yield place


@pytest.fixture
def visit(browser, address):
    opened = []

    def _visit(query: str = "", width: str = "desktop"):
        opened.append(Visit(browser, address, f"claims.html{query}", "light", width))
        return opened[-1]

    yield _visit
    for one in opened:
        one.context.close()


def shown(page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('.ck-claim')].filter(r => r.offsetParent).map(r => r.id)"
    )


def test_filters_work_with_the_keyboard(visit):
    page = visit().page
    expect(page.locator("output")).to_have_text(f"{ALL} claims")
    page.locator("[name=words]").focus()
    page.keyboard.type("Proof theorem 4")
    found = shown(page)
    assert "claim-2-11" in found
    assert len(found) < 10
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # no longer those that hold
    fewer = shown(page)
    assert "claim-2-11" in fewer
    assert "claim-2-13" in found
    assert "claim-2-13" not in fewer
    expect(page.locator("output")).to_have_text(f"{len(fewer)} of {ALL} claims")
    page.get_by_role("button", name="Show all").press("Enter")
    expect(page.locator("output")).to_have_text(f"{ALL} claims")
    assert len(shown(page)) == ALL


def test_a_text_is_chosen_and_the_others_leave_with_their_headings(visit):
    page = visit().page
    page.locator("[name=source]").select_option("paper")
    assert {name.split("-")[1] for name in shown(page)} == {"2"}
    assert page.locator("h2:visible").count() == 1


def test_an_address_keeps_the_filter_and_a_link_to_a_row_wins(visit):
    page = visit("?verdict=wrong&source=paper").page
    wrong = [
        claim for claim in claims.load() if (claim.verdict, claim.source) == ("wrong", "paper")
    ]
    assert shown(page) == [f"claim-{claim.id.replace('.', '-')}" for claim in wrong]
    page.locator("[name=words]").fill("norm")
    expect(page).to_have_url(re.compile("words=norm"))
    page.evaluate("location.hash = 'claim-1-3'")
    expect(page.locator("#claim-1-3")).to_be_in_viewport()
    expect(page.locator("output")).to_have_text(f"{ALL} claims")


@pytest.mark.parametrize("width", ["desktop", "phone"])
def test_nothing_is_too_wide_or_fails(visit, width):
    """axe goes over the built page, with all others (tests/pages)."""
    opened = visit(width=width)
    assert (opened.errors, opened.outside, opened.sideways()) == ([], [], [])


def test_a_phone_shows_cards_that_are_still_a_table(visit):
    page = visit(width="phone").page
    assert page.locator("#claim-2-2").evaluate("row => getComputedStyle(row).display") == "grid"
    expect(page.get_by_role("row").filter(has_text="LayerNorm(X ⊕ [1])").first).to_be_visible()


def test_without_the_script_all_rows_and_no_dead_controls(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/claims.html")
    assert page.locator(".ck-claim:visible").count() == ALL
    assert not page.locator("#ck-filter").is_visible()
    context.close()
