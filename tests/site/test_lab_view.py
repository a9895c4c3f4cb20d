"""What the lab draws and says in one state, against the library; and what it remembers of what a reader does."""

import re
from functools import cache
from urllib.parse import parse_qs, urlencode

import pytest
import torch
from playwright.sync_api import expect

import circuitkit as ck
from tests.support.site import DESKTOP, OpenPage

TEXT = "Mr. Dursley had a neighbour who disliked Mr. D"
CUTS = ["L0H0->L1H3.K", "L1H1"]
#: Every field of a state has another value than the one that the lab starts with.
STATE = {"model": "two-layer", "step": 5200, "text": TEXT, "cuts": CUTS, "fill": "mean"}
STATE |= {"at": 21, "answer": 0, "head": "L0H2", "tab": "score"}
DRAWN = "document.querySelector('.cl-lab[data-drawn]:not([aria-busy])') !== null"
ROUND_TRIP = """async state => {
    const {toAddress, fromAddress} = await circuitLab.need("parts"), {steps} = await circuitLab.need("text");
    return [toAddress(state), fromAddress(toAddress(state), steps)];
}"""
# A session whose engine answers at once, and whose screen writes down what it is given.
SESSION = """async () => {
    const {Session} = await circuitLab.need("parts"), {steps} = await circuitLab.need("text");
    const asked = [], said = [], reply = setting => ({tokens: [...setting.text].map((id, i) => ({id, text: id})), at: 3,
        answer: {id: setting.answer < 0 ? 7 : setting.answer}, nLayers: 2, nHeads: 4});
    const engine = {has: () => true, bring: async () => {}, measure: async () => ({found: {}, next: 0}),
        run: async setting => { asked.push(setting); return reply(setting); }};
    const state = {model: "two-layer", step: 24000, text: "abc", cuts: [], fill: "zero", at: -1, answer: -1, head: "L1H3", tab: "parts"};
    const session = new Session(engine, state, steps);
    session.screen = {say: text => said.push(text), begin() {}, end() {}, drawing: (_, text) => [() => said.push(text)]};
    const wait = ms => new Promise(done => setTimeout(done, ms)), log = [];
    const note = () => log.push({...session.state, said: said.at(-1), past: session.past.length});
    const steps_of_reader = [
        () => session.toggle("L0H1->L1H3.K"), () => session.toggle("L0H2"), () => session.toggle("L0H1->L1H3.K"),
        () => session.change({fill: "mean"}, "Mean"), () => session.change({answer: 6}, "Chosen token"),
        () => session.choose(1), () => session.choose(2),
        () => { session.typed("ab"); session.typed("abcd"); return wait(200); },
        () => session.change({answer: 5}, "Chosen token"), () => { session.slide(session.stepAt(0)); return wait(150); },
        () => session.chooseModel("one-layer"), () => session.change({cuts: []}, "Reset"),
    ];
    for (const act of steps_of_reader) { await act(); await wait(30); note(); }
    while (session.past.length) { session.back(); await wait(30); note(); }
    return {log, asked, file: session.file(state), start: state};
}"""
PERCENT = """async all => {
    const {percent} = await circuitLab.need("parts");
    return all.map(percent);
}"""
ALPHA = """([head, i, j, n]) => {
    const canvas = [...document.querySelectorAll(".cl-card")].find(c => c.querySelector(".cl-name").textContent === head)
        .querySelector("canvas");
    return canvas.getContext("2d").getImageData(j, i, 1, 1).data[3];
}"""


def address(state: dict) -> str:
    """The state as a link has it, written without the lab's own code."""
    fields = {"without" if name == "cuts" else name: value for name, value in state.items()}
    return "#lab:" + urlencode(fields | {"without": ",".join(state["cuts"])})


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", "").removesuffix("%"))


@cache
def model(step: int = 24000):
    return ck.load_model("two-layer", step=None if step == 24000 else step)


def logits(*without: str) -> torch.Tensor:
    """All logits of the shipped model, `[pos, vocab]`."""
    return ck.run(model(), model().to_tokens(TEXT), without=without).logits[0]


@pytest.fixture(scope="module")
def opened(browser, site):
    """The lab with two cuts: a wire with zero, and a head."""
    state = {"model": "two-layer", "text": TEXT, "cuts": CUTS, "head": "L1H3", "tab": "parts"}
    tab = OpenPage(browser, f"{site}/book/lab.html{address(state)}", DESKTOP)
    tab.page.wait_for_function(DRAWN, polling=50, timeout=60_000)
    yield tab
    tab.context.close()


@pytest.fixture
def page(opened):
    return opened.page


def test_percentages_are_right_to_half_their_last_digit(page):
    """One digit behind the point below 10% and above 99.5%, where 0% and 100% are 0.0% and 100.0%."""
    chances = [i / 20_000 for i in range(20_001)]
    shown = page.evaluate(PERCENT, chances)
    for p, text in zip(chances, shown, strict=True):
        half = 0.5 if 0.0995 <= p < 0.995 else 0.05
        assert text.endswith("%")
        assert abs(number(text) - 100 * p) <= half + 1e-9, p


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"at": 0, "answer": 2047, "step": 0},
        {"text": "a&b=c#%?+ \n\u202e é", "cuts": [], "fill": "zero", "tab": "words"},
        {"model": "one-layer", "step": 20000, "cuts": ["L0H0"], "head": "L0H3", "tab": "python"},
    ],
)
def test_a_link_brings_back_every_field(page, changes):
    state = STATE | changes
    link, read = page.evaluate(ROUND_TRIP, state)
    assert read == state
    fields = {name: values[0] for name, values in parse_qs(link.removeprefix("#lab:")).items()}
    assert (fields["at"], fields["answer"]) == (str(state["at"]), str(state["answer"]))
    assert fields.get("without", "") == ",".join(state["cuts"])


def test_a_session_remembers_and_undoes_each_step(page):
    found = page.evaluate(SESSION)
    log, start = found["log"], found["start"]
    first, *_ = log
    assert first["cuts"] == ["L0H1->L1H3.K"]
    assert [entry["cuts"] for entry in log[1:3]] == [["L0H1->L1H3.K", "L0H2"], ["L0H2"]]
    assert log[0]["said"] == "You cut the wire from L0H1 to the keys of L1H3"
    assert log[1]["said"] == "L0H2 is off"
    assert log[2]["said"] == "You reconnected the wire from L0H1 to the keys of L1H3"
    assert (log[4]["answer"], log[5]["answer"]) == (6, -1), "another position has its own answer"
    assert (log[6]["at"], log[6]["past"]) == (2, log[5]["past"]), "a walk is one step"
    assert (log[7]["text"], log[7]["at"], log[7]["past"]) == ("abcd", -1, log[6]["past"] + 1)
    assert (log[9]["step"], log[9]["answer"]) == (0, 5)
    assert (log[10]["model"], log[10]["cuts"], log[10]["answer"]) == ("one-layer", [], -1)
    fields = list(start)
    undone = [{name: entry[name] for name in fields} for entry in log[12:]]
    changed = [start, *log[:5], *log[6:10]]
    expected = [{name: entry[name] for name in fields} for entry in reversed(changed)]
    assert undone == expected
    assert log[12]["said"] == "Undone (The model with one layer of four heads)"
    assert found["file"] == "two-layer"
    files = {setting["model"] for setting in found["asked"]}
    assert files == {"two-layer", "two-layer-step00000", "one-layer"}


def test_tokens_show_their_probabilities(page):
    after = logits(*CUTS).softmax(-1)
    ids = model().to_tokens(TEXT)[0]
    labels = page.locator(".cl-chip").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert len(labels) == len(ids)
    for i in range(1, len(ids)):
        shown = number(re.search(r"probability ([\d.]+%)", labels[i])[1])
        assert shown == pytest.approx(100 * float(after[i - 1, ids[i]]), abs=0.51), labels[i]


def test_next_tokens_show_the_model_before_and_after_the_cuts(page):
    before, after = (logits(*cuts)[-1].softmax(-1) for cuts in ([], CUTS))
    rows = page.locator(".cl-guesses tbody tr").all()
    assert len(rows) >= 5
    for row in rows:
        token = int(row.locator("button").get_attribute("data-key").split()[1])
        was, now = (number(cell) for cell in row.locator("td").all_inner_texts()[1:])
        assert was == pytest.approx(100 * float(before[token]), abs=0.51)
        assert now == pytest.approx(100 * float(after[token]), abs=0.51)
        style = row.locator(".cl-chance").get_attribute("style")
        bars = dict(re.findall(r"--(was|is): *([\d.e-]+)", style))
        assert float(bars["was"]) == pytest.approx(float(before[token]), abs=1e-5)
        assert float(bars["is"]) == pytest.approx(float(after[token]), abs=1e-5)
    first = page.locator(".cl-top b").inner_text()
    assert number(first) == pytest.approx(100 * float(after.max()), abs=0.51)


def effect_of(name: str) -> float:
    """How far the logit of the answer falls if this is cut, too, above the mean logit."""
    token = int(logits()[-1].argmax())
    others = [cut for cut in CUTS if cut != name]
    with_it, without_it = logits(*others)[-1], logits(*others, name)[-1]
    return float((with_it[token] - with_it.mean()) - (without_it[token] - without_it.mean()))


def test_wires_have_the_width_sign_and_colour_of_their_effects(page):
    listed = page.locator(".cl-strong button").evaluate_all(
        "all => all.map(one => [one.dataset.key.split(' ')[1], one.lastChild.textContent, one.className, one.ariaPressed])"
    )
    assert CUTS[0] in [name for name, *_ in listed]
    sizes = [abs(number(value)) for _, value, *_ in listed]
    assert sizes == sorted(sizes, reverse=True)
    for name, value, looks, pressed in listed:
        effect = effect_of(name)
        assert number(value) == pytest.approx(effect, abs=0.06), name
        assert ("cl-down" in looks, "cl-up" in looks) == (effect < 0, effect > 0), name
        assert pressed == ("true" if name in CUTS else "false")
        wire = page.locator(f".cl-wire[data-wire='{name}']")
        classes = wire.get_attribute("class").split()
        if name in CUTS:
            assert "cl-cut" in classes
            continue
        assert f"cl-{name[-1]}" in classes, "the colour is the side that the wire enters"
        assert ("cl-lowers" in classes) == (effect < 0), name
        width = float(wire.get_attribute("stroke-width"))
        assert width == pytest.approx(min(14, 0.6 + 0.95 * abs(effect)), abs=0.06), name


def test_bars_and_numbers_are_the_logit_in_parts_before_and_after_the_cuts(page):
    """Pale bars (`was`) are the intact model, and full bars (`is`) the edited one."""
    token = int(logits()[-1].argmax())
    toward = model().W_U[:, token] - model().W_U.mean(1)
    runs = [ck.run(model(), model().to_tokens(TEXT), without=cuts) for cuts in ([], CUTS)]
    parts = [{k: float(v[0, -1] @ toward) for k, v in run.parts().items()} for run in runs]
    expected = [values | {"sum": sum(values.values())} for values in parts]
    most = max(abs(value) for values in expected for value in values.values())
    rows = page.locator(".cl-sum tbody tr").all()
    assert len(rows) > 8
    for row in rows:
        name, *shown = row.locator("th, td:not(.cl-bars)").all_inner_texts()
        for bar, text, values in zip(("was", "is"), shown, expected, strict=True):
            assert number(text) == pytest.approx(values[name], abs=0.051), name
            width = float(row.locator(f".cl-bar-{bar}").get_attribute("width"))
            assert width / 48 == pytest.approx(abs(values[name]) / most, abs=0.001), name


def test_each_group_of_heads_is_called_by_its_layer(page):
    groups = page.locator(".cl-row").evaluate_all(
        "all => all.map(one => [one.ariaLabel, [...one.querySelectorAll('.cl-name')].map(name => name.textContent)])"
    )
    assert dict(groups) == {f"Layer {k}": [f"L{k}H{head}" for head in range(4)] for k in (0, 1)}


def test_wires_lead_from_their_writer_to_the_side_that_they_enter(page):
    boxes = page.locator(".cl-card").evaluate_all(
        "all => all.map(one => [one.querySelector('.cl-name').textContent, one.getBoundingClientRect().left"
        " - document.querySelector('.cl-circuit').getBoundingClientRect().left, one.getBoundingClientRect().width])"
    )
    place = {name: (left, wide) for name, left, wide in boxes}
    for side, share in zip("QKV", (0.22, 0.5, 0.78), strict=True):
        path = page.locator(f".cl-wire[data-wire='L0H1->L1H3.{side}']").get_attribute("d")
        points = [float(value) for value in re.findall(r"-?[\d.]+", path)]
        writer, reader = place["L0H1"], place["L1H3"]
        assert points[0] == pytest.approx(writer[0] + writer[1] / 2, abs=1)
        assert points[-2] == pytest.approx(reader[0] + reader[1] * share, abs=1)


def test_heads_show_their_patterns_and_whether_they_are_off(page):
    run = ck.run(model(), model().to_tokens(TEXT), without=CUTS)
    patterns = {f"L{i}H{h}": run.pattern(f"L{i}H{h}")[0] for i in (0, 1) for h in range(4)}
    n = len(patterns["L0H0"])
    for head, pattern in patterns.items():
        for dst, src in ((3, 1), (8, 7), (n - 2, 6), (n - 2, n - 3)):
            shade = page.evaluate(ALPHA, [head, dst, src, n])
            assert shade == pytest.approx(255 * float(pattern[dst, src]) ** 0.5, abs=2), head
        switch = page.get_by_role("switch", name=head, exact=True)
        assert switch.get_attribute("aria-checked") == ("false" if head in CUTS else "true")
        look = page.locator(".cl-look").filter(has_text=head)
        assert look.get_attribute("aria-pressed") == ("true" if head == "L1H3" else "false")


def test_arcs_and_their_words_are_the_attention_of_the_chosen_head(page):
    run = ck.run(model(), model().to_tokens(TEXT), without=CUTS)
    row = run.pattern("L1H3")[0, -1]
    picked = page.locator(".cl-arcs").first.locator(".cl-picked")
    widths = sorted(float(arc.get_attribute("stroke-width")) for arc in picked.all())
    expected = sorted(0.5 + 6 * float(share) for share in row if share >= 0.02)
    assert widths == pytest.approx(expected, abs=0.02)
    middles = page.locator(".cl-chip").evaluate_all(
        "all => all.map(one => one.offsetLeft + one.offsetWidth / 2)"
    )
    ends = {
        round(float(re.findall(r"-?[\d.]+", arc.get_attribute("d"))[-2])) for arc in picked.all()
    }
    assert ends <= {round(x) + shift for x in middles for shift in (-1, 0, 1, 5, 6, 4)}
    best = int(row.argmax())
    assert min(abs(end - middles[best]) for end in ends) < 2
    sentence = page.locator(".cl-looks").inner_text()
    assert sentence.startswith("L1H3 attends from ·D to ")
    assert f"{round(100 * float(row.max()))}%" in sentence


def test_a_state_of_a_link_is_the_state_on_the_page(open_page, site):
    page = open_page(f"{site}/book/lab.html{address(STATE)}", again=True, width=DESKTOP).page
    page.wait_for_function(DRAWN, polling=50, timeout=60_000)
    assert page.locator(".cl-chip[aria-selected=true]").get_attribute("data-at") == "21"
    assert page.locator(".cl-fill input:checked").get_attribute("value") == "mean"
    assert page.locator(".cl-training output").inner_text() == "5,200"
    assert page.locator(".cl-look[aria-pressed=true] .cl-name").inner_text() == "L0H2"
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "Attention score"
    assert page.locator(".cl-followed button").get_attribute("data-key") == "follow 0"
    page.locator("circuit-lab").get_by_role("button", name="Copy a link").click()
    link = page.locator("circuit-lab .cl-link")
    expect(link).not_to_have_value("")
    copied = link.input_value()
    assert parse_qs(copied.partition("#lab:")[2]) == parse_qs(address(STATE).removeprefix("#lab:"))
    page.locator("circuit-lab").get_by_role("button", name="Reset").click()
    page.wait_for_function(DRAWN, polling=50)
    assert page.locator(".cl-gone, .cl-wire.cl-cut").count() == 0
    assert page.locator(".cl-chip[aria-selected=true]").get_attribute("data-at") == "21"
