"""The lab as a reader uses it: by keyboard, from a file, under a strict policy, with text that means harm."""

import shutil
import time
from urllib.parse import parse_qs, unquote, urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_tools import served
from lab_tools import lab
from playwright.sync_api import expect

from circuitkit import anatomy, load_model

TEXT = "Mr. Dursley had a neighbour who disliked Mr. D"
PATIENCE = 120_000
MOST = 2_000_000


class Reader:
    """A page with the lab, and everything that went wrong on it."""

    def __init__(
        self,
        browser,
        address: str,
        *,
        width=1280,
        theme="light",
        reduced="no-preference",
        offline=False,
        **how,
    ):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            reduced_motion=reduced,
            offline=offline,
            **how,
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.wrong, self.loaded = [], {}
        self.page.on(
            "console", lambda message: message.type == "error" and self.wrong.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append("dialog"), dialog.dismiss()))
        self.page.on("requestfinished", self.count)
        self.page.goto(address)
        if theme == "dark":
            self.page.evaluate("document.documentElement.dataset.theme = 'dark'")

    def count(self, request):
        if not request.url.startswith(("data:", "blob:")):
            self.loaded[request.url.rsplit("/", 1)[-1]] = int(
                request.response().headers.get("content-length", 0)
            )

    def until(self, condition: str) -> None:
        """Wait until a condition holds, asked from outside: the policy forbids the page to evaluate text."""
        end = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(condition):
            assert time.monotonic() < end, condition
            self.page.wait_for_timeout(30)

    def settled(self) -> str:
        """Wait for the picture; what was said."""
        self.until("document.querySelector('.cl-lab[data-drawn]:not([aria-busy])') !== null")
        return self.page.locator(".cl-said").inner_text()

    def start(self) -> str:
        self.page.get_by_role("button", name="Start the model").click()
        return self.settled()

    def press(self, name: str, role: str = "button", exact: bool = False) -> str:
        """Reach a control as the keyboard does, and press it."""
        control = self.page.get_by_role(role, name=name, exact=exact).first
        control.focus()
        assert control.evaluate("element => element === document.activeElement")
        self.page.keyboard.press("Enter" if role != "switch" else "Space")
        self.page.wait_for_timeout(30)
        return self.settled()

    def chances(self) -> dict[str, tuple[str, str]]:
        """The table of next tokens: whole and now."""
        found = {}
        for row in self.page.locator(".cl-guesses tbody tr").all():
            cells = [cell.inner_text() for cell in row.locator("th, td").all()]
            found[cells[0]] = (cells[2], cells[-1])
        return found


@pytest.fixture
def reader(browser, address):
    opened = []

    def open_(where: str = address, **how) -> Reader:
        opened.append(Reader(browser, where, **how))
        return opened[-1]

    yield open_
    for one in opened:
        one.context.close()


def probability(text: str, cuts=(), token: str = "ur", model: str = "two-layer") -> float:
    bridge = load_model(model)
    logits = anatomy(bridge).run(bridge.to_tokens(text), without=list(cuts)).logits[0, -1]
    return float(logits.softmax(-1)[bridge.to_single_token(token)])


def said(p: float) -> str:
    return f"{p:.0%}".replace("%", " %") if p >= 0.0995 else f"{p:.1%}".replace("%", " %")


def test_nothing_comes_before_the_reader_touches_the_lab_and_then_little(reader):
    opened = reader()
    opened.page.wait_for_timeout(300)
    assert not [
        name
        for name in opened.loaded
        if name in ("parts.js", "lab.js", "engine.js", "text.js") or "layer" in name
    ]
    assert opened.start() == "The model is here: ur has 94 %."
    assert {"parts.js", "lab.js", "engine.js", "text.js", "two-layer.js"} <= set(opened.loaded)
    assert sum(opened.loaded.values()) <= MOST, opened.loaded
    assert not [name for name in opened.loaded if "step" in name]
    assert opened.wrong == []


def test_the_induction_circuit_is_seen_cut_and_mended(reader):
    opened = reader()
    opened.start()
    wires = opened.page.locator(".cl-wire.cl-up")
    thickest = max(wires.all(), key=lambda wire: float(wire.get_attribute("stroke-width")))
    assert thickest.get_attribute("data-wire") == "L0H1->L1H3.K"
    whole, cut = probability(TEXT), probability(TEXT, ["L0H1->L1H3.K"])
    box = thickest.bounding_box()
    opened.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.until("!!document.querySelector('.cl-wire.cl-cut')")
    told = opened.settled()
    assert told.startswith(
        "Cut: the wire from L0H1 to the keys of L1H3: ur from 94 % to 1.1 %; first is now "
    )
    assert opened.chances()["ur"] == (said(whole), said(cut))
    told = opened.press("Undo")
    assert told == "Undone (Cut: the wire from L0H1 to the keys of L1H3): ur from 1.1 % to 94 %."
    assert opened.page.locator(".cl-wire.cl-cut").count() == 0


def test_a_tour_by_keyboard(reader):
    opened = reader(reduced="reduce")
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "cl-go"
    assert page.locator(".cl-note").get_attribute("role") == "status"
    page.evaluate(
        "window.lost = 0; addEventListener('focusout', event => window.lost += !event.relatedTarget)"
    )
    page.keyboard.press("Enter")
    opened.settled()
    assert page.evaluate("document.activeElement.textContent") == "A name comes again"
    assert page.evaluate("lost") == 0  # at no moment

    # along the tokens
    page.locator(".cl-chip[aria-selected=true]").focus()
    page.keyboard.press("ArrowLeft")
    opened.until("document.activeElement.dataset.at === '21'")
    assert opened.settled().startswith("Position 21, .. ")
    page.keyboard.press("Home")
    opened.until("document.activeElement.dataset.at === '0'")
    page.keyboard.press("End")
    opened.until("document.activeElement.dataset.at === '22'")
    opened.settled()

    # heads and wires, and what is left of them
    assert opened.press("L0H1", "switch", exact=True).startswith("L0H1 out: ur from 94 % to 0.9 %")
    assert page.locator(".cl-gone .cl-name").inner_text() == "L0H1"
    page.keyboard.press("Control+z")
    opened.until("!document.querySelector('.cl-gone')")
    opened.settled()
    told = opened.press("Cut L0H0->L1H3.K")
    assert told.startswith("Cut: the wire from L0H0 to the keys of L1H3: ur from 94 % to 27 %")
    # The button that was pressed keeps the focus, although the list was drawn again.
    assert page.evaluate("document.activeElement.dataset.key") == "strong L0H0->L1H3.K"
    opened.press("Put all back")
    page.locator(".cl-wire-list summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".cl-all button")).to_have_count(48)

    # panels
    page.locator("[role=tab][aria-selected=true]").focus()
    page.keyboard.press("ArrowRight")
    opened.settled()
    expect(page.locator(".cl-score")).to_be_visible()
    page.keyboard.press("ArrowRight")
    opened.settled()
    expect(page.locator(".cl-words")).to_be_visible()

    # another token is followed, another model, another step
    opened.press("uring")
    assert page.locator(".cl-guesses [aria-pressed=true]").inner_text() == "uring"
    page.get_by_label("Training step").focus()
    page.keyboard.press("Home")
    opened.until("document.querySelector('.cl-training output').textContent === '0'")
    page.wait_for_timeout(200)
    assert opened.settled().startswith("Training step 0: ")
    assert "two-layer-step00000.js" in opened.loaded
    page.get_by_label("Model", exact=True).select_option("one-layer")
    opened.until("document.querySelectorAll('.cl-card').length === 4")
    opened.settled()
    assert page.locator(".cl-wire").count() == 0
    assert opened.wrong == []


def test_what_was_said_stays_while_a_panel_is_opened_and_is_seen_at_the_circuit_of_a_phone(reader):
    opened = reader(width=390)
    opened.start()
    opened.press("L1H3", "switch", exact=True)
    told = opened.settled()
    assert told.startswith("L1H3 out: ur from 94 % to 0.8 %")
    assert opened.press("Words of a head", "tab") == told
    echo = opened.page.locator(".cl-echo")
    assert echo.inner_text() == told
    assert echo.get_attribute("aria-hidden") == "true"  # the live region has said it
    below = echo.bounding_box()["y"] - opened.page.locator(".cl-circuit").bounding_box()["y"]
    assert below < 640  # in one window with the switches
    assert opened.press("A name comes again").startswith(
        "A name comes again: ur from 0.8 % to 94 %"
    )
    assert opened.press("A name comes again") == "A name comes again: ur stays at 94 %."
    wide = reader()
    wide.start()
    assert not wide.page.locator(".cl-echo").is_visible()


def test_typing_is_one_step_for_undo(reader):
    opened = reader()
    opened.start()
    box = opened.page.get_by_label("Text", exact=True)
    box.fill("")
    box.press_sequentially("kx qof", delay=5)
    opened.until("document.querySelectorAll('.cl-chip').length === 6")
    opened.settled()
    opened.press("Undo")
    assert box.input_value() == TEXT


def test_the_state_is_in_the_address_and_a_link_brings_it_back(reader, address):
    opened = reader()
    opened.start()
    opened.press("Cut L0H1->L1H3.K")
    opened.press("L1H2", "switch", exact=True)
    state = parse_qs(unquote(opened.page.url).partition("#lab:")[2])
    assert state["without"] == ["L0H1->L1H3.K,L1H2"]
    assert state["text"] == [TEXT]
    opened.press("Copy a link")
    opened.page.get_by_label("The link to this finding").wait_for()  # copying takes a moment
    link = opened.page.get_by_label("The link to this finding").input_value()
    again = reader(link)
    again.settled()  # it starts by itself: who follows a link wants to see
    assert again.chances() == opened.chances()
    assert again.page.locator(".cl-gone .cl-name").inner_text() == "L1H2"
    assert reader(f"{address}#lab-bug").settled()


@pytest.mark.parametrize("broken", ["#lab:garbage", "#lab-nothing", "#lab:model=two-layer&step=0"])
def test_a_link_that_cannot_be_read_is_said_and_the_preset_stands_there(reader, address, broken):
    opened = reader(address + broken)
    assert opened.settled() == "The link could not be read, so this is the beginning: ur has 94 %."
    assert opened.page.get_by_label("Text", exact=True).input_value() == TEXT


def test_a_link_that_is_cut_off_within_a_letter_does_no_harm(reader, address):
    opened = reader(f"{address}#lab:text=Mr.%20D%E0%A4%A")
    opened.settled()
    toy = reader(address.replace("lab.html", "toy.html") + "#toy:%E0%A4%A")
    assert toy.page.locator("circuit-toy.cl-live").count() == 1
    assert opened.wrong == toy.wrong == []


def test_a_link_without_a_step_opens_the_trained_model(reader, address):
    opened = reader(f"{address}#lab:model=two-layer&text=Mr.%20D")
    opened.settled()
    assert int(opened.page.locator(".cl-training output").inner_text().replace(",", "")) > 10_000


def test_a_checkpoint_follows_no_token_of_the_text_before(reader):
    opened = reader()
    opened.start()
    opened.page.evaluate("""() => {
        document.querySelector('[data-preset=nonsense]').click();
        const slider = document.querySelector('.cl-training input');
        slider.value = slider.max - 1;
        slider.dispatchEvent(new Event('input'));
        // The worker is asked for the new text, and answers too late.
        const until = performance.now() + 400;
        while (performance.now() < until);
    }""")
    opened.until(
        "document.querySelectorAll('.cl-chip').length === 16 || document.querySelector('.cl-said').textContent.startsWith('Training step')"
    )
    opened.page.wait_for_timeout(200)
    opened.settled()
    assert opened.page.locator(".cl-guesses [aria-pressed=true]").inner_text() != "ur"


def test_empty_text_bytes_and_signs_are_said_in_words(reader):
    opened = reader()
    opened.start()
    box = opened.page.get_by_label("Text", exact=True)
    box.fill("")
    opened.until("document.querySelectorAll('.cl-chip').length === 1")
    told = opened.settled()
    assert told.startswith("New text: “,” has ")
    assert told.endswith("The text is empty: the model sees its opening token alone.")
    box.fill("😀")
    opened.until("document.querySelectorAll('.cl-chip').length > 1")
    assert "read as its bytes, such as <F0>" in opened.settled()


def test_the_lab_says_how_to_read_it(reader):
    opened = reader()
    opened.start()
    legend = opened.page.locator(".cl-legend")
    assert "blue raises the followed token, orange lowers it" in legend.inner_text()
    colours = legend.locator("b").evaluate_all("all => all.map(one => getComputedStyle(one).color)")
    assert colours == ["rgb(0, 114, 178)", "rgb(198, 81, 2)"]


SMALL = """all => all.filter(one => one.offsetParent && one.getBoundingClientRect().height)
    .map(one => [one.className || one.tagName, one.getBoundingClientRect().height]).filter(([, high]) => high < 43.9)"""


def test_a_finger_hits_every_control(reader, address):
    phone = {"width": 390, "has_touch": True, "is_mobile": True}
    opened = reader(**phone)
    opened.start()
    opened.page.locator("[id$=tab-score]").click()
    opened.settled()
    opened.page.locator(".cl-wire-list summary").click()
    opened.page.locator(
        ".cl-all button"
    ).first.wait_for()  # the table is made when its box has opened
    controls = (
        "circuit-lab :is(button, select, summary, [role=option], input[type=range], .cl-fill label)"
    )
    assert opened.page.locator(controls).count() > 80
    assert opened.page.locator(controls).evaluate_all(SMALL) == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    toy = reader(address.replace("lab.html", "toy.html"), **phone)
    assert toy.page.locator("circuit-toy :is(button, summary, label)").evaluate_all(SMALL) == []


HARM = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp\x00 \"'`${alert(3)}"


def test_hostile_text_never_becomes_markup(reader, address):
    opened = reader(
        f"{address}#lab:{urlencode({'text': HARM, 'head': HARM, 'without': HARM, 'model': HARM, 'tab': HARM})}"
    )
    opened.settled()
    assert opened.page.locator("circuit-lab :is(img, script, iframe)").count() == 0
    for tab in ("score", "words", "python", "parts"):
        opened.page.locator(f"[id$=tab-{tab}]").click()
        opened.settled()
    assert opened.page.locator("circuit-lab :is(img, script, iframe)").count() == 0
    shown = opened.page.locator(".cl-chips").inner_text()
    assert "<script>" in shown.replace("\n", "")
    assert "\u202e" not in shown
    assert opened.wrong == []


def test_ten_thousand_letters_do_no_harm(reader):
    opened = reader()
    opened.start()
    opened.page.get_by_label("Text", exact=True).fill("ab" * 5000)
    opened.until("document.querySelectorAll('.cl-chip').length === 256")
    assert "The model reads the first 256 tokens." in opened.settled()
    assert opened.wrong == []


STATES = {
    "whole": "",
    "wire": "&without=L0H1->L1H3.K",
    "more": "&without=L0H0,L0H1->L1H2.V,L1H1&at=9",
    "mean": "&without=L0H1,L0H0->L1H3.K&fill=mean",
    "step": "&step=5200&without=L0H3",
}


@pytest.mark.parametrize("name", STATES)
def test_the_python_computes_what_the_page_shows(reader, address, name, capsys):
    text = 'He said "naïve" – Mr. Dursley, Mr. D' if name == "more" else TEXT
    opened = reader(f"{address}#lab:model=two-layer&tab=python&head=L1H3&text={text}{STATES[name]}")
    opened.settled()
    code = opened.page.locator(".cl-code").inner_text()
    names: dict = {}
    exec(code, names)
    printed = capsys.readouterr().out
    assert str({part: round(value, 1) for part, value in names["parts"].items()}) in printed
    assert str(getattr(names["score"], "table", names["score"])) in printed
    assert (
        str(names["model"].to_str_tokens(names["looks_for"].flatten().topk(8).indices)) in printed
    )
    probabilities = names["logits"].softmax(-1)
    shown = {
        int(row.locator("button").get_attribute("data-key").removeprefix("follow ")): row.locator(
            "td"
        ).last.inner_text()
        for row in opened.page.locator(".cl-guesses tbody tr").all()
    }
    top = probabilities.topk(5)
    for token, chance in zip(top.indices.tolist(), top.values.tolist(), strict=True):
        assert abs(float(shown[token].removesuffix(" %")) / 100 - chance) < 0.006
    opened.page.locator("[id$=tab-score]").click()
    opened.settled()
    score = names["score"]
    table = score.queries @ score.keys.T if hasattr(score, "queries") else score
    cells = opened.page.locator(".cl-score tbody td").all_inner_texts()
    assert [float(cell.replace("−", "-")) for cell in cells] == pytest.approx(
        table[:-1, :-1].flatten().tolist(), abs=0.0501
    )
    opened.page.locator("[id$=tab-parts]").click()
    opened.settled()
    ours = {}
    for row in opened.page.locator(".cl-sum tbody tr").all():
        cells = [cell.inner_text() for cell in row.locator("th, td").all()]
        ours[cells[0]] = float(cells[-1].replace("−", "-"))
    theirs = dict(names["parts"])
    theirs.pop("pos")
    assert ours.pop("sum") == pytest.approx(sum(theirs.values()), abs=0.06)
    assert ours == pytest.approx(theirs, abs=0.06)


def test_the_python_finds_the_words_of_the_note_that_is_chosen(reader, address):
    opened = reader(f"{address}#lab:model=two-layer&tab=words&head=L1H3&text={TEXT}")
    opened.settled()
    choice = opened.page.get_by_label("Who wrote the note")
    assert choice.input_value() == "1"  # whoever writes most of what the head finds
    for writer in ("1", "-1", "2"):
        opened.page.locator("[id$=tab-words]").click()
        opened.settled()
        choice.select_option(writer)
        opened.page.wait_for_timeout(500)  # the words come from the worker
        shown = opened.page.locator(".cl-words ol").first.locator(".cl-number").all_inner_texts()
        opened.page.locator("[id$=tab-python]").click()
        opened.settled()
        names: dict = {}
        exec(opened.page.locator(".cl-code").inner_text(), names)
        found = names["looks_for"].flatten().topk(len(shown)).values.tolist()
        assert [float(one.replace("−", "-")) for one in shown] == pytest.approx(found, abs=0.0501)


def test_the_python_of_a_long_text_runs(reader):
    opened = reader()
    opened.start()
    opened.page.get_by_label("Text", exact=True).fill("the king " * 200)
    opened.until("document.querySelectorAll('.cl-chip').length === 256")
    opened.settled()
    # Every small picture shows where its head looks most, though it has fewer pixels than there are tokens.
    faint = "all => all.map(one => Math.max(...one.getContext('2d').getImageData(0, 0, one.width, one.height).data.filter((_, i) => i % 4 === 3)))"
    assert min(opened.page.locator("canvas.cl-map").evaluate_all(faint)) > 120
    assert opened.page.locator("canvas.cl-map").evaluate_all(
        "all => all.every(one => one.width <= one.clientWidth)"
    )
    opened.page.locator("[id$=tab-python]").click()
    opened.settled()
    names: dict = {}
    exec(opened.page.locator(".cl-code").inner_text(), names)
    assert names["tokens"].shape[1] == 256


def test_paper_says_what_stood_on_the_page(reader):
    opened = reader()
    opened.start()
    opened.press("Cut L0H1->L1H3.K")
    opened.page.emulate_media(media="print")
    told = opened.page.locator(".cl-paper").inner_text()
    assert f"“{TEXT}”, without L0H1->L1H3.K. At position " in told
    assert opened.page.locator(".cl-paper").is_visible()
    assert not opened.page.get_by_role("button", name="Undo").is_visible()


def test_a_link_that_is_read_in_part_says_so(reader, address):
    opened = reader(f"{address}#lab:model=two-layer&text={TEXT}&without=L7H7,L0H1")
    assert opened.settled().startswith("Part of the link could not be read: ")
    whole = reader(f"{address}#lab:model=two-layer&text={TEXT}&without=L0H1")
    assert whole.settled().startswith("The model is here: ")


def test_another_place_is_no_change(reader, address):
    opened = reader(f"{address}#lab:model=two-layer&text={TEXT}")
    opened.settled()
    opened.page.locator(".cl-chip").nth(4).click()
    told = opened.settled()
    assert told.startswith("Position 4, ")
    assert " from " not in told
    assert " now " not in told
    opened.press("L0H0", "switch", exact=True)
    assert " first is now ," not in opened.settled()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_lab_is_accessible_and_no_wider_than_the_page(reader, width, theme):
    opened = reader(width=width, theme=theme)
    opened.start()
    for tab in ("parts", "score", "words", "python"):
        opened.page.locator(f"[id$=tab-{tab}]").click()
        opened.settled()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        found = (
            Axe()
            .run(opened.page, options={"resultTypes": ["violations"], "preload": False})
            .response
        )
        assert [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found["violations"]] == []


def test_from_a_file_without_a_network(reader, folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "Mes livres é")
    opened = reader((place / "lab.html").as_uri(), offline=True)
    assert opened.start() == "The model is here: ur has 94 %."
    assert opened.press("Cut L0H1->L1H3.K").startswith("Cut: ")
    opened.page.get_by_role("button", name="A skip trigram").click()
    opened.until("document.querySelectorAll('.cl-card').length === 4")
    opened.settled()
    assert opened.wrong == []


def test_a_file_that_does_not_come_is_said(reader, folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "_static/lab/models/two-layer.js").unlink()
    with served(broken) as place:
        opened = reader(f"{place}/lab.html")
        opened.page.get_by_role("button", name="Start the model").click()
        expect(opened.page.locator(".cl-note")).to_contain_text(
            "models/two-layer.js did not load", timeout=PATIENCE
        )
        (broken / "_static/lab/parts.js").write_text("throw 1")
        opened = reader(f"{place}/lab.html")
        opened.page.get_by_role("button", name="Start the model").click()
        expect(opened.page.locator(".cl-note")).to_contain_text(
            "parts.js did not load", timeout=PATIENCE
        )


def test_two_modules_of_one_name_are_refused(tmp_path):
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport function twice() {}\n')
    (tmp_path / "b.js").write_text("export const b = 1;\nfunction twice() {}\n")
    with pytest.raises(ValueError, match=r"a.js and b.js of the lab both declare twice"):
        lab.joined("a.js", tmp_path)
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\n')
    with pytest.raises(ValueError, match="in a circle: a.js -> b.js -> a.js"):
        lab.joined("a.js", tmp_path)
    (tmp_path / "b.js").write_text("export default 1;\n")
    with pytest.raises(
        ValueError, match="'export default 1;' is in a form that the build does not know"
    ):
        lab.joined("a.js", tmp_path)


def test_the_scripts_are_the_same_every_time():
    assert [lab.script(name) for name in lab.SCRIPTS] == [lab.script(name) for name in lab.SCRIPTS]
