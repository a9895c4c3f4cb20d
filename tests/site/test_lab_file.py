"""A page that `ck.lab` has saved, opened from disk, and the same file in the lab of the site."""

import base64
import re

import pytest
import torch
from playwright.sync_api import expect

import circuitkit as ck
from circuitkit.lab_page import bundle
from tests.support import tiny_models
from tests.support.firefox import Firefox
from tests.support.site import DESKTOP, PHONE

DRAWN = ".cl-lab[data-drawn]:not([aria-busy])"
ROW = [3, 7, 11, 5, 3, 7, 11]
WIRE = "L0H0->L2H1.V"
HARM = "<img src=x onerror=alert(1)><script>alert(2)</script>"
SIZES = {"d_model": 12, "d_head": 6, "n_heads": 2, "n_layers": 3, "n_ctx": 12, "d_vocab": 20}


@pytest.fixture(scope="module")
def model():
    """Three layers with MLPs and LayerNorm; its weights have 16 bits."""
    made = tiny_models.boot(
        torch.float32, **SIZES, size=0.7, attn_only=False, d_mlp=16, normalization_type="LN"
    )
    with torch.no_grad():
        for weight in {*made.parameters(), *made.original_model.parameters()}:
            weight.copy_(weight.half())
    return made


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    rows = torch.tensor([ROW, ROW[::-1]])
    return ck.lab(model, rows, title=HARM).save(tmp_path_factory.mktemp("lab") / "mine.html")


def percent(model, cuts, logits=None) -> str:
    """The probability of the token that is most probable without cuts."""
    tokens = torch.tensor([ROW])
    token = ck.run(model, tokens).logits[0, -1].argmax()
    logits = ck.run(model, tokens, without=cuts).logits[0, -1] if logits is None else logits
    value = 100 * float(logits.softmax(-1)[token])
    return f"{value:.0f}%" if value >= 9.95 else f"{value:.1f}%"


def run_python(page, model) -> dict:
    """What the lines of Python that the page shows compute, with the model in place of the dots."""
    page.get_by_role("tab", name="Python").click()
    code = page.locator(".cl-code").inner_text()
    names = {"given": model}
    exec(re.sub(r"model = \.\.\..*", "model = given", code), names)
    return names


DROP = """async ([name, text]) => {
    const files = new DataTransfer();
    files.items.add(new File([text], name));
    for (const kind of ["dragover", "drop"])
        document.querySelector(".cl-lab").dispatchEvent(new DragEvent(kind, {dataTransfer: files, bubbles: true}));
}"""


BETWEEN = """() => {  // a preset with a head that the model on the page lacks, and a scroll before its reply is here
    document.querySelector(".cl-preset").click();
    document.querySelector(".cl-strip").dispatchEvent(new Event("scroll"));
}"""


@pytest.mark.parametrize(
    ("width", "theme"),
    [(PHONE, "dark"), pytest.param(DESKTOP, "light", marks=pytest.mark.weekly)],
)
def test_a_saved_page_opens_from_disk_without_a_request_and_a_wire_is_cut(
    open_page, file, model, width, theme
):
    opened = open_page(file.as_uri(), width=width, theme=theme, bypass_csp=True)
    asked = []
    opened.page.on("request", lambda request: asked.append(request.url))
    expect(opened.page.locator(DRAWN)).to_have_count(1, timeout=60_000)
    expect(opened.page.locator(".cl-verdict")).to_contain_text("Agrees with PyTorch")
    followed = opened.page.locator(".cl-followed td").nth(1)
    assert followed.inner_text() == percent(model, [])
    names = run_python(opened.page, model)
    assert percent(model, [], names["logits"]) == percent(model, [])
    assert {"parts", "raises", "looks_for"} <= set(names)
    opened.page.get_by_text(re.compile(r"All \d+ wires")).click()
    opened.page.locator(f"[data-key='all {WIRE}']").press("Enter")
    expect(opened.page.locator(".cl-status")).to_contain_text("You cut the wire")
    assert opened.page.locator(".cl-followed td").nth(2).inner_text() == percent(model, [WIRE])
    names = run_python(opened.page, model)
    assert percent(model, [], names["logits"]) == percent(model, [WIRE])
    opened.page.get_by_role("tab", name="Neurons").press("Enter")
    expect(opened.page.locator(".cl-panel")).to_contain_text("strongest of 48 are listed")
    expect(opened.page.locator(".cl-panel")).not_to_contain_text("are measured")
    switches = opened.page.locator(".cl-neurons").get_by_role("switch")
    neuron = switches.first.get_attribute("aria-label")
    opened.page.get_by_role("switch", name=neuron, exact=True).press("Space")
    expect(opened.page.locator(".cl-status")).to_contain_text(f"{neuron} is off")
    both = percent(model, [WIRE, neuron])
    expect(opened.page.locator(".cl-followed td").nth(2)).to_have_text(both)
    expect(opened.page.locator(DRAWN)).to_have_count(1)
    assert opened.page.locator("h1").inner_text() == HARM
    assert [url for url in asked if not url.startswith("blob:")] == []
    assert opened.problems == []
    assert opened.too_wide() == []
    assert opened.accessibility_faults(contrast=False) == []


def test_a_page_without_a_worker_computes_itself_and_says_so(open_page, file):
    opened = open_page("about:blank")
    opened.page.add_init_script("window.Worker = class { constructor() { throw new Error(); } }")
    opened.go(file.as_uri())
    expect(opened.page.locator(DRAWN)).to_have_count(1, timeout=60_000)
    expect(opened.page.locator(".cl-verdict")).to_contain_text("allows the page no worker")
    assert opened.problems == []


def test_a_page_whose_weights_were_changed_refuses_and_says_why(open_page, file, tmp_path):
    text = file.read_text("utf-8")
    found = re.search(r'id="ck-lab-file">(.*?)</script>', text)
    other = base64.b64encode(b"\x02" + bytes(7) + b"{}").decode()
    (tmp_path / "other.html").write_text(text.replace(found[1], other), "utf-8")
    opened = open_page((tmp_path / "other.html").as_uri())
    expect(opened.page.locator("circuit-lab")).to_contain_text("not written by ck.lab")
    expect(opened.page.locator("circuit-lab")).to_contain_text("ck.run(model, tokens")


def test_the_lab_of_the_site_opens_a_file_and_refuses_another(open_page, site, file, tmp_path):
    opened = open_page(f"{site}/book/lab.html", width=DESKTOP)
    page = opened.page
    expect(page.locator(DRAWN)).to_have_count(1, timeout=60_000)
    hostile = tmp_path / "hostile.html"
    hostile.write_text(bundle.one_file(HARM, b"\xff" * 64), "utf-8")
    choose = page.get_by_label("Open your own model")
    page.set_viewport_size({"width": DESKTOP, "height": 500})  # the message is below the window
    choose.scroll_into_view_if_needed()
    choose.set_input_files(hostile)
    status = page.locator("circuit-lab .cl-status")
    expect(status).to_contain_text(
        "could not be opened: the file is damaged (its header would have"
    )
    assert not status.inner_text().endswith("..")
    expect(status).to_be_in_viewport(ratio=0.9)
    page.evaluate(DROP, ["mine.html", file.read_text("utf-8")])
    expect(page.locator(".cl-verdict")).to_contain_text("Agrees with PyTorch")
    expect(page.get_by_label("Model", exact=True).locator("option").last).to_have_text(HARM)
    expect(page.locator(DRAWN)).to_have_count(1)
    page.evaluate(BETWEEN)
    expect(status).to_contain_text("the probability of ur is 94%")
    assert opened.problems == []


@pytest.mark.weekly
def test_a_saved_page_opens_from_disk_in_firefox_without_a_request(file, model, tmp_path):
    drawn = "document.querySelector('.cl-lab[data-drawn]:not([aria-busy])')"
    cells = "[...document.querySelectorAll('.cl-followed td')].map(cell => cell.innerText)"
    control = tmp_path / "control.html"
    control.write_text("<img src='http://a.test/b.png'>")
    (tmp_path / "profile").mkdir()
    firefox = Firefox(tmp_path / "profile")
    try:
        firefox.go(control.as_uri())
        firefox.wait_for("document.images[0].complete")
        asked = [line for line in firefox.asked if "a.test" in line]
        assert asked, "a request would not be noticed"
        firefox.go(file.as_uri())
        firefox.wait_for(drawn)
        verdict = firefox.run("return document.querySelector('.cl-verdict').innerText")
        assert "Agrees with PyTorch" in verdict
        assert firefox.run(f"return {cells}")[1] == percent(model, [])
        summaries = "[...document.querySelectorAll('summary')]"
        firefox.run(f"{summaries}.find(one => /^All \\d+ wires/.test(one.innerText)).click()")
        wire = f"""document.querySelector("[data-key='all {WIRE}']")"""
        firefox.wait_for(wire)
        firefox.run(f"{wire}.click()")
        firefox.wait_for(f"{drawn} && {cells}.length > 2")
        assert firefox.run(f"return {cells}")[2] == percent(model, [WIRE])
        names = "performance.getEntriesByType('resource').map(one => one.name)"
        assert [name for name in firefox.run(f"return {names}") if name[:5] != "blob:"] == []
        assert [line for line in firefox.asked if "a.test" not in line] == []
    finally:
        firefox.end()
