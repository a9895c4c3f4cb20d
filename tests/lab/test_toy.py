"""Two heads, three trigrams in the page: the verdict beside the sliders is the library's, by mouse and by keyboard."""

import re
from dataclasses import replace

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from circuitkit import superposition as sp

SET = """writes => document.querySelectorAll('circuit-toy input[type=range]').forEach((input, k) => {
    input.value = writes[Math.floor(k / 3)][k % 3];
    input.dispatchEvent(new Event('input'));
})"""
ROWS = "[...document.querySelectorAll('circuit-toy tbody tr')].map(row => [...row.children].map(cell => cell.textContent))"
SETTINGS = [
    [[4, -2, 3], [-2, 4, 3]],
    [[4, -2, 6], [-2, 4, 0]],
    [[1, 2, 3], [0, 0.5, 5]],
    [[6, 0, 6], [0, 6, 6]],
    [[-3, 2, 1], [5, -1, -6]],
    [[3, 0, 4.5], [0, 3.5, 5.5]],
]


@pytest.fixture
def page(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    opened = context.new_page()
    wrong = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda told: told.type == "error" and wrong.append(told.text))
    opened.goto(address.replace("lab.html", "toy.html"))
    yield opened
    context.close()
    assert wrong == []


def told(writes) -> tuple[list[str], torch.Tensor]:
    """The verdict of the library on the same two heads, in the page's words, and the worst gain of each head."""
    model = sp.hand_specified(n_heads=2, n_trigrams=3)
    W_O = model.heads.W_O.clone()
    W_O[:, 0, 4:7] = torch.tensor(writes, dtype=W_O.dtype)
    made = replace(model, heads=replace(model.heads, W_O=W_O))
    found = sp.head_verdict(made, made.task, rows=20)
    words = []
    for trigram in range(3):
        carriers = [f"head {head}" for head in range(2) if found.carried[head, trigram] == 1]
        words.append(
            "not learnt" if found.learnt[trigram] < 1 else " and ".join(carriers) or "no head alone"
        )
    return words, found.gain


@pytest.mark.parametrize("writes", SETTINGS)
def test_the_verdict_is_that_of_the_library(page, writes):
    page.evaluate(SET, writes)
    rows = page.evaluate(ROWS)
    words, gains = told(writes)
    assert [row[1] for row in rows] == words
    for trigram, (_, _, *alone, both) in enumerate(rows):
        here = [
            float(re.search(r"gain (\S+)", cell)[1].replace("−", "-")) for cell in (*alone, both)
        ]
        for head in range(2):
            assert abs(min(here[head], here[2]) - gains[head, trigram]) <= 0.0501


def test_by_keyboard_a_change_is_told_and_taken_back(page):
    before = page.evaluate(ROWS)
    page.get_by_label("head 1 on C3").focus()
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    assert page.evaluate(ROWS)[2][1] == "not learnt"
    assert page.locator("circuit-toy [aria-live]").inner_text() == "B3: not learnt"
    page.get_by_role("button", name="As it was").press("Enter")
    assert page.evaluate(ROWS) == before
    assert [row[1] for row in before] == ["head 0", "head 1", "no head alone"]


def test_completions_that_are_level_are_shown_as_level(page):
    page.evaluate(SET, [[6, -2, 6], [-2, 4, 3]])
    row = page.evaluate(ROWS)[0]
    assert row[1] == "no head alone"
    assert row[2].startswith("C1 = C3 level, gain ")
    assert page.locator("circuit-toy [aria-live]").inner_text() == "B1: no head alone"


def test_what_the_page_asks_of_the_toy_is_so(page):
    page.evaluate(SET, [[4, -2, 4.5], [-2, 4, 3]])
    assert [row[1] for row in page.evaluate(ROWS)] == ["not learnt", "head 1", "head 0"]


def test_undo_takes_back_a_change_and_a_stretch_of_sliding(page):
    slider, before = page.get_by_label("head 0 on C1"), page.evaluate(ROWS)
    page.evaluate(SET, SETTINGS[1])  # one stretch: no change event ends it
    assert page.evaluate(ROWS) != before
    page.get_by_role("button", name="Undo").click()
    assert page.evaluate(ROWS) == before
    assert page.locator("circuit-toy [aria-live]").inner_text().startswith("Undone")
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    slider.press("Control+z")
    assert slider.input_value() == "4.5"
    slider.press("Control+z")
    assert page.evaluate(ROWS) == before
    assert page.get_by_role("button", name="Undo").get_attribute("aria-disabled") == "true"


def test_a_link_brings_back_the_setting(page):
    page.evaluate(SET, SETTINGS[5])
    seen = page.evaluate(ROWS)
    page.get_by_role("button", name="Copy a link").click()
    page.get_by_label("The link to this setting").wait_for()  # copying takes a moment
    link = page.get_by_label("The link to this setting").input_value()
    assert link.endswith("#toy:3,0,4.5,0,3.5,5.5")
    page.goto("about:blank")
    page.goto(link)
    assert page.evaluate(ROWS) == seen
    page.goto(link.replace("#toy:3,", "#toy:9,"))  # beyond the sliders: not followed
    assert page.evaluate(ROWS) == seen


def test_the_python_computes_the_verdict_that_is_shown(page):
    page.evaluate(SET, SETTINGS[1])
    page.get_by_text("Show me the Python").click()
    names = {}
    exec(page.locator(".ct-python code").inner_text(), names)
    assert torch.equal(names["found"].gain, told(SETTINGS[1])[1])


def test_without_script_a_figure_and_a_table_of_the_library_remain(browser, address):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(address.replace("lab.html", "toy.html"))
    words, gains = told([[4, -2, 3], [-2, 4, 3]])
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".ct-still tbody tr").all()]
    assert [row[0] for row in rows] == words
    assert [[float(cell.replace("−", "-")) for cell in row[1:]] for row in rows] == [
        pytest.approx(column, abs=0.0501) for column in gains.T.tolist()
    ]
    assert page.locator(".ct-still svg rect").count() == 9
    assert page.locator(".ct-still svg text", has_text="C3 +6").count() == 1
    context.close()


def test_its_buttons_look_like_buttons(page):
    frames = page.locator("circuit-toy .cl-button").evaluate_all(
        "all => all.map(one => parseFloat(getComputedStyle(one).borderTopWidth) && getComputedStyle(one).borderTopColor)"
    )
    assert len(frames) == 4
    assert set(frames) == {"rgb(122, 130, 140)", "rgb(208, 212, 218)"}  # nothing to undo yet


def test_on_paper_the_table_is_there_and_no_buttons(page):
    page.emulate_media(media="print")
    assert page.locator("circuit-toy table").is_visible()
    assert not page.get_by_role("button", name="Copy a link").is_visible()


def test_it_is_accessible_and_fits_a_phone(page):
    page.get_by_text("Show me the Python").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [fault["id"] for fault in Axe().run(page).response["violations"]] == []
