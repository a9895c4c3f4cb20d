"""The page "Born in your tab": a model is trained, paused, shown at an earlier step, opened in the lab, and its wire is cut."""

import re

import pytest
from playwright.sync_api import expect

from circuitkit_book import lab_data
from tests.support.site import DESKTOP, PHONE, OpenPage

PAGE = "book/born-in-your-tab.html"
SAVED = "document.querySelector('.cb-left input').ariaValueText.match(/\\d+/)?.[0] >= {}"
DRAWN = "document.querySelector('circuit-birth .cl-lab[data-drawn]:not([aria-busy])') !== null"
CHANCES = "all => all.map(one => Number(one.style.getPropertyValue('--p')))"
# The attention that the pixels of a square show: its root is their opacity.
SHARES = """canvas => {
    const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const share = (i, j) => (data[4 * (i * width + j) + 3] / 255) ** 2;
    return Array.from({length: width}, (_, i) => Array.from({length: width}, (_, j) => share(i, j)));
}"""
DOTS = "all => all.map(one => [Number(one.getAttribute('cx')), Number(one.getAttribute('cy'))])"
TOO_LOW = """all => all.filter(one => one.offsetParent && one.getBoundingClientRect().height < 43.9)
    .map(one => one.outerHTML.slice(0, 80))"""


class Birth:
    """The page, and what the tests do on it."""

    def __init__(self, opened):
        self.opened, self.page = opened, opened.page
        self.status = self.page.locator(".cb-status")

    def button(self, name: str):
        return self.page.get_by_role("button", name=name, exact=True)

    def train(self, until: int) -> None:
        """Start, and pause at this step or soon after it."""
        self.button("Start").press("Enter")
        self.page.wait_for_function(SAVED.format(until), polling=50, timeout=120_000)
        self.button("Pause").press("Space")
        expect(self.status).to_have_text(re.compile(r"Paused at step \d+\."))

    def shown(self) -> tuple[int, list[float]]:
        """The step that is shown, and the probability of each letter there."""
        step = self.page.get_by_label("Saved step").get_attribute("aria-valuetext")
        return int(step.removeprefix("step ")), self.page.locator(".cb-letter").evaluate_all(
            CHANCES
        )

    def lab(self) -> str:
        """Wait for the lab; returns its message."""
        self.page.wait_for_timeout(120)
        self.page.wait_for_function(DRAWN, polling=50)
        return self.page.locator("circuit-lab .cl-status").inner_text()

    def in_lab(self) -> tuple[float, float]:
        """The probability of the letter f after pathfinderspath, of the intact and the cut model."""
        row = self.page.locator(".cl-followed td").all_inner_texts()[1:]
        intact, *cut = (float(text.removesuffix("%")) / 100 for text in row)
        return intact, cut[0] if cut else intact


@pytest.fixture(scope="module")
def birth(browser, site):
    """The page at a desk, for the tests that can share it."""
    opened = OpenPage(browser, f"{site}/{PAGE}", DESKTOP, reduced_motion="reduce")
    yield Birth(opened)
    opened.context.close()


@pytest.fixture
def open_birth(open_page, site):
    return lambda link="", **options: Birth(open_page(f"{site}/{PAGE}{link}", **options))


def test_stored_runs_are_drawn_at_their_share_and_step(birth):
    page = birth.page
    page.wait_for_selector(".cb-stored")
    places = page.locator(".cb-stored").evaluate_all(DOTS)
    stored = [
        (int(percent), step) for percent, steps in lab_data.births().items() for step in steps
    ]
    assert len(places) == len(stored) == 210
    by_step = {step: y for (_, y), (_, step) in zip(places, stored, strict=True)}
    never = by_step.pop(None)
    first, last = min(by_step), max(by_step)
    pixels = (by_step[first] - by_step[last]) / (last - first)
    for step, y in by_step.items():
        assert y == pytest.approx(by_step[first] - (step - first) * pixels, abs=0.11)
        assert y < never
    middles = [sum(x for x, _ in places[i : i + 10]) / 10 for i in range(0, 210, 10)]
    gaps = [b - a for a, b in zip(middles, middles[1:], strict=False)]
    assert max(gaps) - min(gaps) < 0.2
    assert min(gaps) > 0


@pytest.mark.weekly
def test_wire_carries_the_prediction_after_the_birth_and_nothing_before(birth):
    birth.train(until=96)
    after, late = birth.shown()
    formed = int(birth.page.locator(".cb-text.cb-prefix").first.text_content().split()[-1])
    assert 60 < formed <= after
    birth.page.get_by_label("Saved step").press("Home")
    start, early = birth.shown()
    assert start == 0
    assert max(early[12:]) < 0.1
    mean = sum(late[12:]) / len(late[12:])
    assert mean > 0.5, "the letters that come again are predicted"
    birth.page.get_by_label("Saved step").press("End")
    told = birth.page.get_by_text("on average for the letters that come again").inner_text()
    assert float(re.search(r"([\d.]+)% on average", told)[1]) == pytest.approx(
        100 * mean, abs=0.551
    )
    second, first = (birth.page.locator(".cb-map").nth(i).evaluate(SHARES) for i in (0, 1))
    back = sum(first[i][i - 1] for i in range(1, 12)) / 11
    read = sum(sum(row[1:12]) for row in second[12:]) / len(second[12:])
    told = birth.page.locator(".cb-aside").inner_text()
    shown = [float(share) / 100 for share in re.findall(r"([\d.]+)%", told)]
    assert shown == pytest.approx([back, read], abs=0.02)  # a pixel has 256 shades
    birth.button(f"Open step {after} in the lab").click()
    birth.lab()
    assert birth.page.locator("circuit-lab .cl-mark").count() == 0, "the reader is to find the wire"
    assert birth.in_lab()[0] == pytest.approx(late[15], abs=0.006), "the lab has other weights"
    note = birth.page.get_by_text("How much each wire matters is shown after you have cut two")
    expect(note).to_be_visible()
    birth.page.get_by_role("button", name="Cut L0H0->L1H0.K").first.click()
    assert "f falls" in birth.lab()
    wires = birth.page.locator(".cl-strong .cl-cut span")
    order = wires.all_inner_texts()
    assert [name.split(".")[-1] for name in order] == ["Q", "K", "V"]
    intact, cut = birth.in_lab()
    assert intact - cut > 0.5
    birth.page.get_by_role("button", name="Before the birth").click()
    assert "in the intact model and" in birth.lab(), "a cut and a change of the step are mixed"
    assert wires.all_inner_texts() == order
    intact, cut = birth.in_lab()
    assert abs(intact - cut) < 0.1
    birth.page.get_by_role("button", name="Cut L0H0->L1H0.Q").first.click()
    expect(note).to_have_count(0)
    assert birth.opened.accessibility_faults("circuit-birth") == []
    assert birth.opened.problems == []


def test_page_can_be_used_on_a_phone_with_the_keyboard_alone(open_birth):
    link = "#birth:seed=7&layers=1&share=50&blind=1"
    birth = open_birth(link, width=PHONE, reduced_motion="reduce", has_touch=True, is_mobile=True)
    page = birth.page
    asked = "seed 7, one layer, 50% of the rows repeat, layer 0 sees only its own token"
    expect(birth.status).to_have_text(f"The settings are those of the link: {asked}. Press Start.")
    expect(birth.status).to_have_attribute("role", "status")
    birth.train(until=4)
    expect(page.locator(".cb-figure:visible")).to_have_count(1)
    slider = page.get_by_label("Saved step")
    slider.press("Home")
    slider.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "step 4")
    seed = page.get_by_label("seed", exact=True)
    seed.fill("8")  # of the next run
    seed.press("Tab")
    birth.button("Copy a link").press("Enter")
    assert page.locator(".cb-link").input_value().endswith(f"{PAGE}{link}&step=4")
    controls = page.locator("circuit-birth :is(button, label, input[type=range])")
    assert controls.evaluate_all(TOO_LOW) == []
    assert birth.opened.too_wide() == []
    assert birth.opened.problems == []


@pytest.mark.weekly
def test_own_run_is_a_dot_at_its_share_and_birth(open_birth):
    birth = open_birth(width=DESKTOP)
    birth.button("Start").click()
    birth.button("Start again").wait_for(timeout=120_000)
    formed = int(re.search(r"formed at step (\d+)", birth.status.inner_text())[1])
    ((x, y),) = birth.page.locator(".cb-own").evaluate_all(DOTS)
    places = birth.page.locator(".cb-stored").evaluate_all(DOTS)
    stored = [step for steps in lab_data.births().values() for step in steps]
    same = [place for (_, place), step in zip(places, stored, strict=True) if step == formed]
    assert y == pytest.approx(same[0], abs=0.11) if same else True
    assert x == pytest.approx(sum(place for place, _ in places[-10:]) / 10, abs=0.2)
