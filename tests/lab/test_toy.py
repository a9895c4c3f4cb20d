"""Two heads, three trigrams in the page: the verdict beside the sliders is the library's, by mouse and by keyboard."""

import re
from dataclasses import replace

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from circuitkit import superposition as sp

SET = """writes => document.querySelectorAll('circuit-toy input').forEach((input, k) => {
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
        words.append("not learnt" if found.learnt[trigram] < 1 else " and ".join(carriers) or "no head alone")
    return words, found.gain


@pytest.mark.parametrize("writes", SETTINGS)
def test_the_verdict_is_that_of_the_library(page, writes):
    page.evaluate(SET, writes)
    rows = page.evaluate(ROWS)
    words, gains = told(writes)
    assert [row[1] for row in rows] == words
    for trigram, (_, _, *alone, both) in enumerate(rows):
        here = [float(re.search(r"gain (\S+)", cell)[1].replace("−", "-")) for cell in (*alone, both)]
        for head in range(2):
            assert abs(min(here[head], here[2]) - gains[head, trigram]) <= 0.0501


def test_by_keyboard_a_change_is_told_and_taken_back(page):
    before = page.evaluate(ROWS)
    page.get_by_label("head 1 on C3").focus()
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    assert page.evaluate(ROWS)[2][1] == "not learnt"
    assert page.locator("circuit-toy [aria-live]").inner_text() == "trigram 3: not learnt"
    page.get_by_role("button", name="As it was").press("Enter")
    assert page.evaluate(ROWS) == before
    assert [row[1] for row in before] == ["head 0", "head 1", "no head alone"]


def test_it_is_accessible_and_fits_a_phone(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [fault["id"] for fault in Axe().run(page).response["violations"]] == []
