"""The claims page as a reader uses it: every claim has its row, and the filters show the rows that match."""

import pytest
from playwright.sync_api import expect

from circuitkit_book import claims
from tests.support.site import DESKTOP, OpenPage

ALL = claims.load()


@pytest.fixture(scope="module")
def page(browser, site):
    """One tab for all tests; each leaves all claims visible."""
    opened = OpenPage(browser, f"{site}/book/claims.html", DESKTOP)
    yield opened.page
    opened.context.close()


def shown(page) -> set[str]:
    return set(page.locator(".ck-claim:visible").evaluate_all("all => all.map(row => row.id)"))


def row_of(claim) -> str:
    return claim.id.lower()


def test_every_claim_has_a_row(page):
    assert shown(page) == {row_of(claim) for claim in ALL}


def test_a_filter_by_source_shows_the_claims_of_that_source_only(page):
    page.locator("[name=source]").select_option("paper")
    wanted = {row_of(claim) for claim in ALL if claim.source == "paper"}
    assert shown(page) == wanted
    expect(page.locator("output")).to_have_text(f"{len(wanted)} of {len(ALL)} claims")
    page.get_by_role("button", name="Show all").press("Enter")
    expect(page.locator("output")).to_have_text(f"{len(ALL)} claims")


def test_words_that_are_typed_are_searched_in_the_claims(page):
    page.locator("[name=words]").fill("Proof theorem 4")
    assert "p11" in shown(page)
    assert len(shown(page)) < 10
    page.get_by_role("button", name="Show all").press("Enter")
    expect(page.locator("output")).to_have_text(f"{len(ALL)} claims")


def test_a_row_shows_its_null_and_what_it_is_of(page):
    claim = claims.find("N17")
    row = page.locator(f"#{row_of(claim)}")
    expect(row.locator(".ck-values thead")).to_contain_text("null")
    expect(row.locator(".ck-values")).to_contain_text("0.984 to 0.985")
    expect(row.locator(".ck-null")).to_contain_text(claim.null_of)


@pytest.mark.weekly
def test_a_claim_about_a_model_of_the_lab_opens_there(open_page, site):
    opened = open_page(f"{site}/book/claims.html", again=True, width=DESKTOP)
    page = opened.page
    links = page.locator(".ck-see")
    assert links.count() == sum(claim.lab is not None for claim in ALL) > 15
    row = page.locator(f"#{row_of(claims.find('E16'))}")
    row.locator(".ck-see").press("Enter")
    dialog = page.get_by_role("dialog", name="A claim in the lab")
    expect(dialog.locator(".cl-status")).to_contain_text("ur is 1.1%", timeout=60_000)
    expect(dialog.locator(".cl-wire.cl-cut")).to_have_attribute("data-wire", "L0H1->L1H3.K")
    assert opened.accessibility_faults("dialog") == []
    page.keyboard.press("Escape")
    expect(row.locator(".ck-see")).to_be_focused()
    assert opened.problems == []
