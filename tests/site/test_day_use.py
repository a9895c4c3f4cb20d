"""The circuit of the day as a reader plays it: with the keyboard, on a phone, by a link of a past day."""

import io
from contextlib import redirect_stdout
from datetime import date

import pytest
import torch
from playwright.sync_api import expect

from circuitkit import run
from circuitkit_book.planted import WIRES, WORDS, circuit_of_the_day, cut_sets, leads
from tests.support.site import DESKTOP, PHONE

# Days of each kind; a test below looks up that they are.
REDUNDANT, SIMPLE, EMPTY = date(2026, 11, 12), date(2026, 11, 9), date(2026, 11, 21)


class Game:
    """The page on one day, and what the tests do on it with the keyboard."""

    def __init__(self, opened):
        self.opened, self.page = opened, opened.page
        self.page.set_default_timeout(30_000)
        self.page.wait_for_selector(".cd-game")

    def choose(self, group: str, value: str) -> None:
        """Walk to a radio button of a group with the arrow keys."""
        radios = self.page.locator(f"input[name='cd-{group}']")
        chosen = radios.and_(self.page.locator(":checked"))
        (chosen if chosen.count() else radios).first.press("Space")
        for _ in range(12):
            if self.page.locator(f"input[value='{value}']").is_checked():
                return
            self.page.keyboard.press("ArrowRight")
        raise AssertionError(f"the keyboard does not reach {value}")

    def cut(self, name: str) -> str:
        writer, reader = name.split("->")
        self.choose("writer", writer)
        self.choose("input", reader)
        return self.press(f"Cut {writer} → {reader[5]} of {reader[:4]}")

    def press(self, name: str) -> str:
        """Press Enter on a button; returns what is announced then."""
        self.page.get_by_role("button", name=name, exact=True).press("Enter")
        return self.page.get_by_role("status").inner_text()

    def squares(self) -> list[str]:
        return self.page.locator(".cd-square .cd-hidden").all_inner_texts()

    def result(self) -> list[str]:
        return self.page.get_by_label("Your result as text").input_value().split("\n")


@pytest.fixture
def play(open_page, site):
    def play_(day: object, **options) -> Game:
        return Game(
            open_page(f"{site}/book/circuit-of-the-day.html#day-{day}", again=True, **options)
        )

    return play_


def percent(day: date, without) -> str:
    """The probability of the answer with these cuts, computed with the library."""
    planted = circuit_of_the_day(day)
    logits = run(planted.model(), torch.tensor([planted.tokens]), without=list(without)).logits
    value = 100 * float(logits[0, -1].softmax(-1)[planted.answer])
    return f"{value:.0f}%" if value >= 9.95 else f"{value:.1f}%"


def test_redundant_day_is_won_with_the_keyboard_on_a_phone(play):
    planted = circuit_of_the_day(REDUNDANT)
    (answer,) = planted.answers()
    first, second = sorted(answer)
    game = play(REDUNDANT, width=PHONE, reduced_motion="reduce")
    said = game.cut(first)
    assert said.startswith("Square 1 of 7: a part.")
    assert percent(REDUNDANT, [first]) in said
    assert percent(REDUNDANT, []) in said
    said = game.cut(second)
    assert said.startswith("Square 2 of 7: the wire.")
    assert percent(REDUNDANT, answer) in said
    assert "You found the circuit with 2 of 7 squares." in said
    assert game.squares() == ["a part", "the wire", *["not used"] * 5]
    title, signs, link = game.result()
    assert title == f"The circuit of the day, {REDUNDANT}: 2/7"
    assert signs == "🔶✂️"
    assert link == game.page.url
    assert game.page.evaluate("document.getAnimations().length") == 0
    assert game.opened.problems == []
    assert game.opened.too_wide() == []
    assert game.opened.accessibility_faults("circuit-day", contrast=False) == []
    low = "all => all.map(one => one.getBoundingClientRect().height).filter(height => height && height < 24)"
    assert game.page.locator("circuit-day :is(button, .cd-port)").evaluate_all(low) == []


@pytest.mark.weekly
def test_lost_day_shows_the_circuit_and_survives_a_reload(play):
    planted = circuit_of_the_day(SIMPLE)
    ((wire,),) = planted.answers()
    others = [f"L0H{writer}->L1H{reader}.Q" for writer in (0, 1) for reader in (0, 1)]
    game = play(SIMPLE)
    for name in others:
        assert "nothing" in game.cut(name)
    # only three wires are cut at once
    assert "connected again" in game.page.get_by_role("status").inner_text()
    assert game.page.locator(".cd-held button").count() == 3
    assert "there is a circuit" in game.press("Answer: no circuit")
    assert "there is a circuit" in game.press("Answer: no circuit")
    assert "the circuit was not found" in game.press("Answer: no circuit")
    expect(game.page.get_by_role("button", name="Answer: no circuit")).to_have_count(0)
    game.page.reload()
    game.page.wait_for_selector(".cd-game")
    assert game.squares() == ["nothing"] * 4 + ["wrong, there is a circuit"] * 3
    assert game.result()[:2] == [f"The circuit of the day, {SIMPLE}: X/7", "⬜⬜⬜⬜❌❌❌"]
    shown = game.page.locator(".cd-end").inner_text()
    assert f"{wire[:4]} → {wire[-1]} of {wire[6:10]}" in shown
    wide = "all => all.map(one => [one.dataset.wire, Number(one.getAttribute('stroke-width'))])"
    drawn = dict(game.page.locator("path[data-wire]").evaluate_all(wide))
    without = dict(zip(cut_sets()[0], leads(planted), strict=True))
    assert set(drawn) == set(WIRES)
    for i, name in enumerate(WIRES):
        width = min(max(2 * abs(without[()] - without[i,]), 0.7), 11)
        assert drawn[name] == pytest.approx(width, abs=0.051), name
    with redirect_stdout(io.StringIO()) as printed:
        exec(game.page.locator(".cd-end code").text_content(), {})
    assert printed.getvalue().startswith(f"simple [['{wire}']]\ntensor(")


def test_empty_day_is_won_by_the_answer_that_there_is_no_circuit(play):
    assert circuit_of_the_day(EMPTY).answers() == []
    game = play(EMPTY, theme="dark")
    assert game.page.locator("circuit-day :checked").count() == 0, "a wire is chosen at first"
    said = game.press("Cut the chosen wire")
    assert said.startswith("Choose a head of layer 0, and Q, K or V of a head of layer 1.")
    assert game.squares() == ["not used"] * 7
    said = game.press("Answer: no circuit")
    assert said.startswith("Square 1 of 7: right, there is no circuit.")
    assert game.result()[:2] == [f"The circuit of the day, {EMPTY}: 1/7", "✅"]
    assert game.opened.accessibility_faults("circuit-day") == []


def test_model_of_the_day_opens_in_the_lab(play):
    planted = circuit_of_the_day(EMPTY)
    model, tokens = planted.model(), torch.tensor([planted.tokens])
    game = play(EMPTY, width=DESKTOP)
    game.press("Answer: no circuit")
    game.press("Open this model in the lab")
    expect(game.page.get_by_role("status").first).to_have_text("The lab is open below the result.")
    shown = game.page.locator(".cl-sum tbody tr:not(.cl-total)").all_inner_texts()
    values = [row.split()[0::2] for row in shown]
    direction = model.W_U[:, planted.answer] - model.W_U.mean(1)
    parts = run(model, tokens).contributions(direction)
    for name, value in values:
        assert float(value.replace("−", "-")) == pytest.approx(float(parts[name][0, -1]), abs=0.051)
    assert len(values) == 9  # the embedding and eight heads
    assert game.opened.problems == []


def test_every_pattern_and_probability_on_the_page_is_that_of_the_model(play):
    planted = circuit_of_the_day(SIMPLE)
    _, cache = planted.model().run_with_cache(torch.tensor([planted.tokens]))
    game = play(SIMPLE)
    assert game.page.locator(".cd-text li").all_inner_texts()[1:] == [
        WORDS[token] for token in planted.tokens[1:]
    ]
    for layer, group, value in ((0, "writer", "L0H2"), (1, "input", "L1H3.V")):
        game.choose(group, value)
        table = game.page.get_by_role("table", name=f"Where {value[:4]} looks")
        cells = table.locator("td .cd-hidden").all_inner_texts()
        shares = [float(text.rstrip("%")) / 100 for text in cells]
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0, int(value[3])]
        rows, columns = torch.tril_indices(12, 12)
        # half a percent: percentages above 10 have no digits behind the point
        assert shares == pytest.approx(pattern[rows, columns].tolist(), abs=0.0051)


def test_link_of_no_day_opens_today_and_says_so(play):
    game = play("x")
    for day in ("2999-01-01", "2026-02-30", "2026-11-09", "x"):
        game.page.evaluate("day => { location.hash = `day-${day}`; }", day)
        heading = game.page.locator("circuit-day h2")
        status = game.page.get_by_role("status")
        if day == "2026-11-09":
            expect(heading).to_have_text("9 November 2026")
            continue
        expect(status).to_contain_text("The link names no day")
        expect(heading).not_to_have_text("9 November 2026")
    assert game.opened.problems == []
