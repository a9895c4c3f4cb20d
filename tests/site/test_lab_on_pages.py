"""The lab inside the pages: it starts when it comes into view, and what would give an answer away opens after a guess."""

import pytest
from playwright.sync_api import expect

from tests.support.site import DESKTOP, PHONE

DRAWN = "document.querySelector('.cl-lab[data-drawn]:not([aria-busy])') !== null"
LOADED = """performance.getEntriesByType('resource').map(({ name }) => name.split('_static/lab/')[1])
    .filter(name => name && !name.startsWith('start.js'))"""
FIND = "book/3-induction-heads/induction-in-a-trained-model.html"
FORMS = "book/3-induction-heads/how-induction-forms.html"
CUT = "book/1-residual-stream/circuit-in-one-picture.html"


def begin(page):
    """Bring the lab into view and wait for it."""
    page.locator("circuit-lab").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN, polling=50, timeout=60_000)


def widths(page) -> set[str]:
    """How wide the wires are."""
    wires = page.locator(".cl-wire:not(.cl-cut)")
    return set(wires.evaluate_all("all => all.map(one => one.getAttribute('stroke-width'))"))


def cut(page, name: str) -> None:
    """Cut a wire in the table of all wires, by keyboard."""
    page.locator(".cl-wire-list details").evaluate("details => (details.open = true)")
    page.locator(f"[data-key='all {name}']").press("Enter")
    page.wait_for_timeout(50)
    page.wait_for_function(DRAWN, polling=50)


def test_wires_show_how_much_they_matter_after_three_cuts(open_page, site):
    opened = open_page(f"{site}/{FIND}", again=True, width=DESKTOP)
    page = opened.page
    assert page.evaluate(LOADED) == []
    begin(page)
    task = page.locator(".cl-try")
    expect(task).to_contain_text("open after you have cut three wires")
    assert len(widths(page)) == 1
    page.locator("[id$=tab-score]").click()
    expect(page.locator(".cl-panel").first).to_have_text(
        "This panel opens after you have cut three wires."
    )
    cut(page, "L0H1->L1H3.K")
    cut(page, "L0H2->L1H3.V")
    assert len(widths(page)) == 1
    cut(page, "L0H0->L1H3.K")
    expect(task).not_to_contain_text("open after")
    assert len(widths(page)) > 1
    expect(page.locator(".cl-score")).to_be_visible()
    assert opened.problems == []


@pytest.mark.weekly
def test_an_answer_on_the_page_or_a_button_opens_what_is_closed(open_page, site):
    page = open_page(f"{site}/{CUT}", width=DESKTOP).page
    begin(page)
    assert len(widths(page)) == 1
    field = page.locator(".ck-answer").first
    field.get_by_label("Your answer").fill("L0H0->L1H3.K")
    field.get_by_label("Your answer").press("Enter")
    assert len(widths(page)) > 1
    other = open_page(f"{site}/{CUT}", width=DESKTOP).page
    begin(other)
    other.get_by_role("button", name="Open now").press("Enter")
    assert len(widths(other)) > 1
    assert other.evaluate("document.activeElement.className").startswith("cl-circuit")
    other.reload()
    begin(other)
    assert len(widths(other)) > 1


def test_born_in_your_tab_loads_on_a_phone_after_a_tap_only(open_page, site):
    opened = open_page(f"{site}/{FORMS}", again=True, width=PHONE)
    page = opened.page
    page.locator("circuit-birth").scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    assert page.evaluate(LOADED) == []
    page.get_by_role("button", name="Train a model here").press("Enter")
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_focused()
    assert opened.accessibility_faults("circuit-birth", contrast=False) == []
    assert opened.problems + opened.too_wide() == []


@pytest.mark.weekly
def test_one_worker_computes_on_a_page_with_two_models(open_page, site):
    page = open_page(f"{site}/{FORMS}", width=DESKTOP).page
    page.locator("circuit-birth").scroll_into_view_if_needed()
    page.get_by_role("button", name="Start", exact=True).press("Enter")
    expect(page.locator(".cb-status")).to_contain_text("After 240 steps", timeout=120_000)
    page.get_by_role("button", name="Show the answer").first.click()
    begin(page)
    assert len(page.workers) == 1
    page.get_by_role("button", name="Open step 240 in the lab").press("Enter")
    expect(page.locator("circuit-birth .cl-status")).to_contain_text("Step 240", timeout=60_000)
    assert len(page.workers) == 1
    last = page.locator("circuit-lab").last
    last.get_by_role("switch", name="L1H3").press("Enter")
    expect(last.locator(".cl-status")).to_contain_text("L1H3 is off", timeout=60_000)
    assert len(page.workers) == 1
