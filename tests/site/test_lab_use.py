"""The lab as a reader uses it: by mouse, by keyboard, on a phone, by a link, and with hostile text."""

import re
from urllib.parse import urlencode

import pytest
import torch
from playwright.sync_api import expect

from circuitkit import circuits, load_model, run
from tests.support.site import DESKTOP, PHONE

TEXT = "Mr. Dursley had a neighbour who disliked Mr. D"
WIRE = "L0H1->L1H3.K"
BACK = "L0H1->L1H2.V"  # lowers the logit where WIRE is cut
FAINT = "L0H2->L1H1.K"  # has no effect
DASHES = "wire => getComputedStyle(wire).strokeDasharray"
NEAR_ITS_END = """wire => {
    wire.ownerSVGElement.scrollIntoView({block: "center", behavior: "instant"});
    const {x, y} = wire.getPointAtLength(0.75 * wire.getTotalLength());
    const {left, top} = wire.ownerSVGElement.getBoundingClientRect();
    return [x + left, y + top];
}"""
HARM = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp\x00 \"'`${alert(3)}"
TOO_LOW = """all => all.filter(one => one.offsetParent && one.getBoundingClientRect().height)
    .map(one => [one.className || one.tagName, one.getBoundingClientRect().height])
    .filter(([, height]) => height < 43.9)"""


class Lab:
    """The page of the lab, and what the tests do on it."""

    def __init__(self, opened):
        self.opened, self.page = opened, opened.page
        self.page.set_default_timeout(60_000)

    def wait(self) -> str:
        """Wait for the picture; returns the status message."""
        ready = "document.querySelector('.cl-lab[data-drawn]:not([aria-busy])') !== null"
        self.page.wait_for_timeout(50)
        self.page.wait_for_function(ready, polling=50)
        return self.page.locator("circuit-lab .cl-status").inner_text()

    def start(self) -> str:
        """Start the lab; at a desk it starts by itself."""
        if self.page.viewport_size["width"] < 1000:
            self.page.get_by_role("button", name="Start the model").click()
        return self.wait()

    def click_wire(self, name: str, aside: int = 0) -> str:
        """Click the middle of a wire, or so many pixels to the side of it."""
        self.page.locator(".cl-circuit").scroll_into_view_if_needed()
        box = self.page.locator(f".cl-wire[data-wire='{name}']").bounding_box()
        x, y = box["x"] + box["width"] / 2 + aside, box["y"] + box["height"] / 2
        touch = self.page.evaluate("navigator.maxTouchPoints > 0")
        (self.page.touchscreen.tap if touch else self.page.mouse.click)(x, y)
        expect(self.page.locator(".cl-wire.cl-cut")).to_have_count(1)
        return self.wait()

    def press(self, name: str, role: str = "button", key: str = "Enter") -> str:
        """Focus a control and press a key on it."""
        self.page.get_by_role(role, name=name, exact=role == "switch").first.press(key)
        return self.wait()

    def show(self, tab: str) -> None:
        self.page.locator(f"[id$=tab-{tab}]").click()
        self.wait()

    def probability(self, word: str) -> str:
        """The present probability of a token in the table of next tokens."""
        row = self.page.locator(".cl-guesses tbody tr", has=self.page.get_by_text(word, exact=True))
        return row.locator("td").last.inner_text()


@pytest.fixture
def open_lab(open_page, site):
    def open_(state: str = "", **options) -> Lab:
        options = {"width": DESKTOP} | options
        return Lab(open_page(f"{site}/book/lab.html{state}", again=True, **options))

    return open_


def probability(*cuts) -> str:
    model = load_model("two-layer")
    logits = run(model, model.to_tokens(TEXT), without=cuts).logits[0, -1]
    value = 100 * float(logits.softmax(-1)[model.to_single_token("ur")])
    return f"{value:.0f}%" if value >= 9.95 else f"{value:.1f}%"


def test_cutting_a_wire_by_mouse_shows_the_change_and_reset_restores_it(open_lab):
    lab = open_lab()
    assert lab.start() == "Ready: the probability of ur is 94%."
    assert "ur falls from 94% to 1.1%" in lab.click_wire(WIRE)
    assert lab.probability("ur") == probability(WIRE)
    lab.page.locator(f"[data-key='strong {WIRE}']").hover()
    pointed = lab.page.locator("circuit-lab .cl-pointed")
    expect(pointed).to_contain_text(f"{WIRE} is cut, and would add +10")
    lab.page.locator(f"[data-key='strong {BACK}']").hover()
    expect(pointed).to_contain_text(f"{BACK} adds −0.6 to the logit. Click to cut it.")
    dashes = [lab.page.locator(f"[data-wire='{name}']").evaluate(DASHES) for name in (WIRE, BACK)]
    assert len(set(dashes)) == 2, "a wire that is cut looks like one that lowers the logit"
    lab.press("Reset")
    assert lab.page.locator(".cl-wire.cl-cut").count() == 0
    assert lab.probability("ur") == probability()
    lab.page.mouse.click(*lab.page.locator(f"[data-wire='{FAINT}']").evaluate(NEAR_ITS_END))
    expect(lab.page.locator(f"[data-wire='{FAINT}']")).to_have_class(re.compile("cl-cut"))
    assert lab.opened.problems == []


@pytest.mark.parametrize(
    ("width", "aside"), [(PHONE, 20), pytest.param(DESKTOP, 20, marks=pytest.mark.weekly)]
)
def test_visitor_of_the_home_page_cuts_the_marked_wire_with_few_clicks(
    open_page, site, width, aside
):
    """At a desk the lab starts by itself; on a phone the whole picture is the button. The mark is a large target."""
    phone = {"has_touch": True, "is_mobile": True} if width == PHONE else {}
    lab = Lab(open_page(f"{site}/book/intro.html", width=width, **phone))
    if phone:
        picture = lab.page.locator(".cl-poster").bounding_box()
        lab.page.touchscreen.tap(picture["x"] + 30, picture["y"] + picture["height"] - 30)
    lab.wait()
    act = "Tap" if phone else "Click"
    expect(lab.page.locator(".cl-try")).to_contain_text(f"{act} the wire marked with scissors")
    target = lab.page.locator(".cl-circuit .cl-mark").bounding_box()
    assert target["y"] + target["height"] < 800, "the wire to click is below the window"
    assert "or falls from 76% to 0.5%" in lab.click_wire(WIRE, aside)
    assert lab.page.locator(".cl-circuit .cl-mark").count() == 0
    assert lab.opened.problems == []


def test_lab_can_be_used_with_the_keyboard_alone(open_lab):
    lab = open_lab(width=900)
    lab.page.locator(".cl-go").focus()
    lab.page.keyboard.press("Enter")
    lab.wait()
    assert lab.press("L0H1", "switch", "Space").startswith("L0H1 is off: ur falls from 94% to 0.9%")
    lab.page.keyboard.press("Control+z")
    expect(lab.page.locator(".cl-gone")).to_have_count(0)
    lab.wait()
    assert "ur falls from 94% to 27%" in lab.press("Cut L0H0->L1H3.K")
    focused = lab.page.evaluate("document.activeElement.dataset.key")
    assert focused == "strong L0H0->L1H3.K", "the pressed button lost the focus"
    lab.press("Undo")
    lab.page.locator(".cl-chip[aria-selected=true]").press("ArrowLeft")
    expect(lab.page.locator(".cl-chip:focus")).to_have_attribute("data-at", "21")
    assert lab.wait().startswith("Position 21, ")
    lab.page.locator("[role=tab][aria-selected=true]").press("ArrowRight")
    expect(lab.page.locator(".cl-score")).to_be_visible()


def test_text_that_fails_is_explained_and_leads_to_one_that_works(open_lab):
    lab = open_lab("#lab:text=The cat sat on the mat. The cat sat on the")
    lab.wait()
    why = lab.page.locator(".cl-why")
    expect(why).to_contain_text("Why not ·mat? The token ·the is also at position 6")
    expect(why).to_contain_text("L1H3 attends to this ·mat with 24% and raises its logit by 5.0")
    lab.press("Try a text that works")
    expect(why).to_have_text("")
    assert lab.probability("ur") == probability()
    lab.press("Undo")
    expect(why).to_contain_text("Why not ·mat?")
    lab.press("Redo")
    expect(why).to_have_text("")


def test_cuts_that_stay_are_named_and_undoing_in_the_text_box_leaves_no_step(open_lab):
    lab = open_lab()
    lab.start()
    lab.press(f"Cut {WIRE}")
    text = lab.page.get_by_label("Text", exact=True)
    text.focus()
    lab.page.keyboard.insert_text(
        " and"
    )  # at once, because slow typing can take several steps of undo
    status = lab.page.locator("circuit-lab .cl-status")
    expect(status).to_have_text(re.compile(f"^New text: .* {WIRE} is still cut"))
    text.press("Control+z")
    expect(text).to_have_value(TEXT)
    expect(status).to_have_text(re.compile("^New text: the probability of ur"))
    lab.wait()
    lab.page.locator(".cl-chip[aria-selected=true]").press("Control+z")
    expect(lab.page.locator(".cl-wire.cl-cut")).to_have_count(0)
    assert lab.wait().startswith("Undone (You cut the wire")
    lab.page.keyboard.press("Control+Shift+z")
    expect(lab.page.locator(".cl-wire.cl-cut")).to_have_count(1)


def test_head_is_seen_from_near_by_keyboard_and_its_words_are_searched(open_lab):
    lab = open_lab(width=PHONE)
    lab.start()
    card = lab.page.locator(".cl-look", has_text="L1H2")
    card.press("Enter")
    dialog = lab.page.get_by_role("dialog", name="Head L1H2")
    model = load_model("two-layer")
    pattern = run(model, TEXT).pattern("L1H2")[0]
    readout = dialog.locator(".cl-readout")
    places = re.compile(r"position (\d+)\).*position (\d+)\) with ([\d.]+)%")
    for keys in ([], ["ArrowUp"], ["ArrowLeft", "ArrowLeft"]):
        for key in keys:
            lab.page.keyboard.press(key)
        at, source, share = places.search(readout.inner_text()).groups()
        assert float(share) == pytest.approx(100 * float(pattern[int(at), int(source)]), abs=0.51)
    assert int(at) == pattern.shape[0] - 2
    dialog.get_by_label("Any token").fill("king")
    lab.page.keyboard.press("Enter")
    raises = dialog.locator("section", has_text="What to write")
    expect(raises).to_contain_text("king")
    name = raises.locator("code").first.inner_text().replace("·", " ")
    written = circuits.full_ov(model, "L1H2")[model.to_single_token(name)].AB.flatten()
    best = model.to_str_tokens(written.topk(8).indices)
    assert [text.replace("·", " ") for text in raises.locator("li code").all_inner_texts()] == best
    assert lab.opened.accessibility_faults(".cl-dialog") == []
    assert lab.opened.too_wide() == []
    lab.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(card).to_be_focused()


def test_wire_is_patched_from_a_second_text_by_keyboard(open_lab):
    other = "Mr. Hursley had a neighbour who disliked Mr. D"
    lab = open_lab(width=PHONE)
    lab.start()
    status = lab.press("Add a second text")
    assert status.startswith("A second text, from which heads and wires are patched: ur stays at")
    second = lab.page.get_by_role("textbox", name="Second text")
    expect(second).to_be_focused()
    expect(second).to_have_value(other)
    status = lab.press(f"Patch {WIRE}")
    model = load_model("two-layer")
    token = model.to_single_token("ur")
    runs = run(model, TEXT), run(model, TEXT, without=WIRE, patch=other), run(model, other)
    row = lab.page.locator("tr", has=lab.page.locator(f"[data-key='follow {token}']"))
    shown = [float(cell.removesuffix("%")) for cell in row.locator("td").all_inner_texts()[1:]]
    chances = [100 * float(one.logits[0, -1].softmax(-1)[token]) for one in runs]
    assert shown == pytest.approx(chances, abs=0.51)
    assert "After the second text, ur has 2.0%" in status
    lab.show("python")
    names: dict = {}
    exec(lab.page.locator("circuit-lab .cl-code").inner_text(), names)
    assert torch.equal(names["logits"], runs[1].logits[0, -1])
    assert lab.opened.accessibility_faults("circuit-lab", contrast=False) == []
    assert lab.opened.too_wide() == []
    again = open_lab("#" + lab.page.url.partition("#")[2])
    assert "ur is 2.0%" in again.wait()
    assert again.page.locator(".cl-wire.cl-cut").get_attribute("data-wire") == WIRE
    second.fill("Mr. D")
    expect(lab.page.locator("circuit-lab .cl-status")).to_contain_text(
        "Nothing is patched: the second text has 5 tokens, and the first has 23."
    )
    lab.wait()
    lab.press("Remove the second text")
    assert lab.probability("ur") == probability()


def test_any_token_can_be_the_answer_and_models_and_checkpoints_can_be_chosen(open_lab):
    lab = open_lab()
    lab.start()
    field = lab.page.get_by_label("Another token as the answer")
    field.fill("qqqq")
    expect(lab.page.locator(".cl-finder [role=status]")).to_have_text("No token contains this.")
    field.fill("king")
    field.press("Enter")  # the token itself comes before longer ones
    assert lab.wait().startswith("Chosen token: the probability of ")
    chosen = lab.page.locator(".cl-followed button")
    expect(chosen).to_have_text(re.compile("^·?king$"))
    lab.press("Undo")
    expect(chosen).to_have_text("ur")
    lab.page.get_by_label("Training step").press("Home")
    expect(lab.page.locator(".cl-training output")).to_have_text("0")
    expect(lab.page.locator("circuit-lab .cl-status")).to_contain_text(
        "Training step 0: at this step, "
    )
    lab.page.get_by_label("Model", exact=True).select_option("one-layer")
    expect(lab.page.locator(".cl-card")).to_have_count(4)
    assert lab.opened.problems == []


@pytest.mark.weekly
def test_controls_of_the_lab_are_large_enough_for_a_finger(open_lab):
    lab = open_lab(width=390, has_touch=True, is_mobile=True)
    lab.start()
    lab.page.locator(".cl-wire-list summary").click()
    lab.page.locator(".cl-all button").first.wait_for()
    controls = lab.page.locator("circuit-lab :is(button, select, summary, [role=option])")
    assert controls.count() > 80
    assert controls.evaluate_all(TOO_LOW) == []
    assert lab.opened.too_wide() == []


@pytest.mark.weekly
def test_started_lab_is_accessible_in_every_panel(open_lab):
    lab = open_lab(width=390)
    lab.start()
    for tab in ("parts", "score", "words", "python"):
        lab.show(tab)
        assert lab.opened.accessibility_faults("circuit-lab") == [], tab


def test_unreadable_link_is_reported_and_opens_the_preset(open_lab):
    lab = open_lab("#lab:garbage")
    assert lab.wait() == (
        "The link could not be read, so the lab starts from the preset: the probability of ur is 94%."
    )


def test_hostile_text_in_a_link_never_becomes_markup(open_lab):
    fields = ("text", "head", "without", "model", "tab")
    lab = open_lab("#lab:" + urlencode(dict.fromkeys(fields, HARM)))
    lab.wait()
    for tab in ("score", "words", "python", "parts"):
        lab.show(tab)
        assert lab.page.locator(".cl-lab :is(img, script, iframe)").count() == 0
    assert "\u202e" not in lab.page.locator(".cl-chips").inner_text()
    assert lab.opened.problems == []


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("fill", "cuts"), [("mean", "L0H1,L0H0->L1H3.K"), ("zero", f"L0H0,{WIRE}")]
)
def test_python_of_the_lab_computes_the_numbers_shown(open_lab, fill, cuts):
    state = f"model=two-layer&tab=python&head=L1H3&text={TEXT}&fill={fill}&without={cuts}"
    lab = open_lab(f"#lab:{state}")
    lab.wait()
    names: dict = {}
    exec(lab.page.locator("circuit-lab .cl-code").inner_text(), names)
    top = names["logits"].softmax(-1).topk(3)
    for token, chance in zip(top.indices.tolist(), top.values.tolist(), strict=True):
        row = lab.page.locator("tr", has=lab.page.locator(f"[data-key='follow {token}']"))
        shown = float(row.locator("td").last.inner_text().removesuffix("%")) / 100
        assert shown == pytest.approx(chance, abs=0.006)
    lab.show("parts")
    theirs = names["parts"] | {"sum": sum(names["parts"].values())}
    for row in lab.page.locator(".cl-sum tbody tr").all():
        name, *_, value = row.locator("th, td").all_inner_texts()
        assert float(value.replace("−", "-")) == pytest.approx(theirs[name], abs=0.06), name
    lab.show("score")
    heading, *rows = lab.page.locator(".cl-score tr").all_inner_texts()
    assert heading.split() == names["names"]
    for row, values in zip(rows, names["score"], strict=True):
        shown = [float(text.replace("−", "-")) for text in row.split()[1:]]
        assert shown == pytest.approx(values.tolist(), abs=0.051), row


def test_missing_weights_are_reported(open_lab):
    lab = open_lab(width=PHONE)
    lab.page.route("**/models/two-layer.js*", lambda route: route.abort())
    lab.page.get_by_role("button", name="Start the model").click()
    expect(lab.page.locator(".cl-note")).to_contain_text("models/two-layer.js did not load")


def shown(logits: torch.Tensor, token: int) -> str:
    """A probability as the lab writes it."""
    value = 100 * float(logits.softmax(-1)[token])
    return f"{value:.0f}%" if value >= 9.95 else f"{value:.1f}%"


@pytest.mark.parametrize(
    ("width", "theme"),
    [(DESKTOP, "light"), pytest.param(PHONE, "dark", marks=pytest.mark.weekly)],
)
def test_a_neuron_is_found_and_its_wire_is_cut_with_the_keyboard(open_page, site, width, theme):
    phone = {"has_touch": True, "is_mobile": True} if width == PHONE else {}
    address = f"{site}/book/lab.html#lab-neuron"
    lab = Lab(open_page(address, width=width, theme=theme, **phone))
    asked = []
    lab.page.on("request", lambda request: asked.append(request.url))
    lab.wait()
    assert not [url for url in asked if "/models/two-layer.js" in url]
    model = load_model("two-layer-mlp")
    token = model.to_single_token("ur")
    panel = lab.page.locator(".cl-panel")
    expect(panel).to_contain_text("The 10 strongest of 1,024 are listed")
    panel.get_by_label("Find a neuron").fill("L0N488")
    panel.get_by_role("button", name="L0N488").press("Enter")
    wire = "L0N488->L1H2.Q"
    panel.locator(f"[data-key='neuron {wire}']").press("Enter")
    expect(lab.page.locator("circuit-lab .cl-status")).to_contain_text(
        "You cut the wire from L0N488"
    )
    lab.wait()
    edited = lab.page.locator(".cl-followed td").nth(2)
    assert edited.inner_text() == shown(run(model, TEXT, without=wire).logits[0, -1], token)
    # at once: the list is drawn again while more neurons are measured, and the switch stays
    panel.get_by_role("switch", name="L0N488").press("Space")
    expect(lab.page.locator("circuit-lab .cl-status")).to_contain_text("L0N488 is off")
    expect(panel.get_by_role("switch", name="L0N488")).to_be_focused()
    lab.page.locator(".cl-mlp").get_by_role("switch", name="L0 MLP").press("Space")
    expect(lab.page.locator("circuit-lab .cl-status")).to_contain_text("L0 MLP is off")
    lab.wait()  # an MLP contains its neurons, so their cuts are gone
    left = float(run(model, TEXT, without="L0 MLP").logits[0, -1].softmax(-1)[token])
    assert (edited.inner_text(), left < 0.0005) == ("0%", True)
    controls = lab.page.locator(":is(.cl-panel, .cl-mlp) :is(button, input)")
    assert width == DESKTOP or controls.evaluate_all(TOO_LOW) == []
    assert lab.opened.problems == []
    assert lab.opened.too_wide() == []
    assert lab.opened.accessibility_faults("circuit-lab", contrast=False) == []


@pytest.mark.weekly
def test_a_copy_without_mlps_agrees_and_a_gate_is_forced(open_page, site):
    lab = Lab(open_page(f"{site}/book/lab.html#lab-neuron", width=DESKTOP))
    lab.wait()
    select, panel = lab.page.get_by_label("Model", exact=True), lab.page.locator(".cl-panel")
    select.select_option("two-layer-mlp-5")
    lab.wait()
    panel.locator("tbody button").first.press("Enter")
    expect(panel).to_contain_text("there are no MLPs")
    expect(panel).to_contain_text("with a difference of less than 0.0001 at most")
    select.select_option("gated")
    lab.wait()
    panel.get_by_label("Gate of L0H6").select_option("shut")
    expect(lab.page.locator("circuit-lab .cl-status")).to_contain_text(
        "The gate of L0H6 is forced shut: C1 falls"
    )
    lab.page.get_by_role("tab", name="Python").click()
    lab.wait()
    code = lab.page.locator("circuit-lab .cl-code").inner_text()
    names = {}
    exec(code, names)
    edited = lab.page.locator(".cl-followed td").nth(2).inner_text()
    assert edited == shown(names["logits"], 6)
    lab.page.locator(".cl-lab").get_by_role("button", name="Undo").click()
    select.select_option("two-layer")
    lab.wait()
    assert "Mr. Dursley" in lab.page.get_by_label("Text", exact=True).input_value()
    assert lab.opened.problems == []
    assert lab.opened.accessibility_faults("circuit-lab") == []


@pytest.mark.weekly
def test_a_preset_begins_with_everything_off_and_a_reader_builds_it_up(open_lab):
    """Three heads bring the prediction back, as do three wires; two presets share one text."""
    lab = open_lab("#lab-build-heads")
    assert lab.wait().startswith("Ready: the probability of or is 0.1%")
    assert "Switch heads on" in lab.page.locator("circuit-lab").inner_text()
    for head in ("L0H0", "L0H1", "L1H3"):
        lab.press(head, role="switch", key="Space")
    assert float(lab.probability("or").rstrip("%")) > 35
    lab.press("Build it up: wires")
    assert "Reconnect wires" in lab.page.locator("circuit-lab").inner_text()
    model = load_model("two-layer")
    text = "The house belonged to Mr. Dorling. Nobody had seen Mr. D"
    wires = [f"L0H{head}->L1H3.{side}" for head in range(4) for side in "QKV"]
    cut = run(model, model.to_tokens(text), without=wires).logits[0, -1].softmax(-1)
    assert lab.probability("or") == f"{100 * float(cut[model.to_single_token('or')]):.1f}%"
    assert lab.opened.problems == []
