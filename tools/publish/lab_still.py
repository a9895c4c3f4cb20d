"""Take the still picture of the lab, for a desk and for a phone, and write down the numbers behind it.

    make book; python -m tools lab-still

The picture is a screenshot of the lab. The numbers come from the library, and `tests/site/test_lab_numbers.py` computes them again.
The variable CIRCUITKIT_HTML names another folder with the built book.
"""

import json
import os
from pathlib import Path

from tools.publish.browser import installed_chromium

ROOT = Path(__file__).resolve().parents[2]
HTML = Path(os.environ.get("CIRCUITKIT_HTML", ROOT / "_build/html"))
PICTURES = {"lab.png": 900, "lab-phone.png": 390}
NUMBERS = ROOT / "book/_lab/still.json"
MODEL, TEXT, ANSWER = "two-layer", "Mr. Dursley had a neighbour who disliked Mr. D", "ur"
READY = ".cl-lab[data-drawn]:not([aria-busy])"


def effects() -> tuple[float, dict[str, tuple[float, float]]]:
    """The probability of the answer; how far its logit falls without each head and wire, and its probability then."""
    import circuitkit as ck

    model = ck.load_model(MODEL)
    tokens, answer = model.to_tokens(TEXT), model.to_single_token(ANSWER)

    def without(cuts):
        logits = ck.run(model, tokens, without=cuts).logits[0, -1]
        return float(logits[answer] - logits.mean()), float(logits.softmax(-1)[answer])

    intact, probability = without([])
    wires = [wire for kind in "QKV" for wire in ck.effects.wires(model, kind)]
    found = {name: without([name]) for name in [*ck.heads_of(model).names, *wires]}
    return probability, {name: (intact - logit, p) for name, (logit, p) in found.items()}


def numbers() -> dict:
    """The numbers below the picture: heads and wires with an effect of one logit or more, the largest first."""
    probability, found = effects()
    large = sorted(
        (name for name in found if abs(found[name][0]) >= 1), key=lambda name: -abs(found[name][0])
    )
    rows = [
        [name, f"{found[name][0]:+.1f}".replace("-", "−"), f"{found[name][1]:.0%}"]
        for name in large
    ]
    return {"text": TEXT, "answer": ANSWER, "whole": f"{probability:.0%}", "rows": rows}


def pictures() -> None:
    from playwright.sync_api import sync_playwright

    page_file = HTML / "book/lab.html"
    if not page_file.is_file():
        raise SystemExit(f"{page_file} does not exist. Build the book first: make book")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_chromium())
        for name, width in PICTURES.items():
            size = {"width": width, "height": 1200}
            page = browser.new_page(viewport=size, device_scale_factor=2, color_scheme="light")
            page.goto(page_file.as_uri())
            page.get_by_role("button", name="Start the model").click()
            page.wait_for_selector(READY, timeout=60_000)
            page.add_style_tag(content=".cl-circuit .cl-mark { display: none }")
            page.mouse.move(0, 0)
            page.locator(".cl-circuit").screenshot(path=ROOT / "book/_static" / name)
        browser.close()


def main() -> None:
    NUMBERS.write_text(json.dumps(numbers(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    pictures()


if __name__ == "__main__":
    main()
