"""The answer of a prediction waits for the reader, and the page remembers what she said."""

import pytest
from playwright.sync_api import expect

from tests.support.pdf import lines
from tests.support.site import DESKTOP

PAGE = "book/1-residual-stream/circuit-in-one-picture"
AFTER = "Without the wire, the probability of"


@pytest.fixture
def opened(open_page, site):
    return open_page(f"{site}/{PAGE}.html", again=True, width=DESKTOP)


@pytest.fixture
def page(opened):
    return opened.page


def parts(page):
    """The first prediction, its folded output, and the text that explains the output."""
    output = page.locator(".tag_hide-output details.hide").first.locator("pre").first
    return page.locator(".ck-predict").first, output, page.get_by_text(AFTER).first


def test_answer_and_explanation_wait_for_a_choice_which_is_remembered_on_this_page(opened, site):
    page = opened.page
    box, output, text = parts(page)
    page.emulate_media(media="print")
    expect(text).to_be_visible()  # on paper; a test below prints an output that waits
    page.emulate_media(media="null")
    expect(output).to_be_hidden()
    expect(text).to_be_hidden()
    box.get_by_role("button", name="about 30%").press("Enter")
    expect(box.get_by_role("status")).to_have_text("✗ You said about 30%. The answer is below 1%.")
    expect(output).to_be_visible()
    expect(text).to_be_visible()
    assert opened.accessibility_faults(".ck-predict") == []
    page.reload()
    expect(box.get_by_role("status")).to_contain_text("You said about 30%")
    expect(output).to_be_visible()
    box.get_by_role("button", name="below 1%").click()
    expect(box.get_by_role("status")).to_have_text("✓ You said below 1%, which is right.")
    assert opened.problems == []
    page.goto(f"{site}/book/1-residual-stream/stream-is-a-sum.html")
    other = page.locator(".ck-predict").first
    expect(other.get_by_text("waits for your prediction")).to_be_visible()
    expect(other.locator("[aria-pressed=true]")).to_have_count(0)


def test_show_all_is_remembered_until_the_reader_takes_it_back(page):
    box, output, text = parts(page)
    box.get_by_role("button", name="Always show answers").click()
    page.reload()
    expect(output).to_be_visible()
    expect(text).to_be_visible()
    box.get_by_role("button", name="Hold answers back again").click()
    expect(output).to_be_hidden()


def test_without_script_the_answer_can_be_read(open_page, site):
    plain = open_page(f"{site}/{PAGE}.html", java_script_enabled=False).page
    box, output, text = parts(plain)
    expect(box.locator("li")).to_have_count(3)
    expect(text).to_be_visible()
    plain.locator(".tag_hide-output summary").first.click()
    expect(output).to_be_visible()


def test_a_printed_page_contains_the_outputs_that_wait(open_page, site):
    """3.87 is in one table of the page, which answers a prediction."""
    address = f"{site}/book/2-qk-and-ov/paths-and-ablation.html"
    page = open_page(address, again=True, width=DESKTOP).page
    expect(page.get_by_role("cell", name="3.87")).to_be_hidden()
    assert "3.87" in lines(page.pdf())


def test_several_numbers_are_predicted_at_once(open_page, site):
    address = f"{site}/book/1-residual-stream/exercises.html"
    page = open_page(address, again=True, width=DESKTOP).page
    box = page.locator(".ck-predict").first
    measured = page.get_by_role("cell", name="1.01")
    expect(measured).to_be_hidden()
    expect(page.get_by_text("Your prediction is L1H0 by its mean")).to_be_hidden()
    box.get_by_label("L1H0 by its mean").fill("0.48")
    box.get_by_role("button", name="Predict").press("Enter")
    expect(box.get_by_role("status")).to_contain_text("Write a number into each field")
    box.get_by_label("L1H2 by its mean").fill("50%")
    box.get_by_role("button", name="Predict").press("Enter")
    expect(box.get_by_role("status")).to_contain_text("✗ 1 of your 2 numbers is within 0.1")
    expect(measured).to_be_visible()
    expect(page.get_by_role("cell", name="0.48").first).to_be_visible()
    page.reload()
    expect(box.get_by_label("L1H2 by its mean")).to_have_value("50%")


def test_a_short_answer_is_judged_on_the_page_and_remembered(opened):
    page = opened.page
    field = page.locator(".ck-answer").first
    answer = field.get_by_label("Your answer")
    text = page.get_by_text("The second wire is").first
    expect(text).to_be_hidden()
    expect(page.get_by_text("The second wire: No answer yet.")).to_be_hidden()
    answer.fill("L0H1 -> L1H3.K")
    answer.press("Enter")
    expect(field.get_by_role("status")).to_contain_text("✗ Not yet. This is the wire that the page")
    answer.fill('"L0H0->L1H3.K"')
    answer.press("Enter")
    expect(field.get_by_role("status")).to_have_text("✓ Right. ")
    expect(text).to_be_visible()
    assert opened.accessibility_faults(".ck-answer", contrast=False) == []
    page.reload()
    expect(field.get_by_role("status")).to_contain_text("✓ Right.")


def test_a_number_is_compared_in_the_form_in_which_it_was_given(open_page, site):
    """The page stores 99.32% for the share of equal first choices."""
    opened = open_page(
        f"{site}/book/4-mlps-as-heads/trained-models.html", again=True, width=DESKTOP
    )
    box = opened.page.locator(".ck-predict").first
    reply, guess = box.get_by_role("status"), box.locator("input")
    for said, told in {
        "many": "Write a number, for example 0.3 or 30%.",
        "90%": "✗ You said 90%. The answer is 99.3%.",
        "0.95": "✗ You said 0.95. The answer is 0.993.",
        "99 %": "✓ You said 99 %, which is right.",
    }.items():
        guess.fill(said)
        guess.press("Enter")
        expect(reply).to_have_text(told)
