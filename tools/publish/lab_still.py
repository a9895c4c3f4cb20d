"""Draw the still figure of the lab, at a desk and on a phone, and write down the numbers behind it.

    make book; python -m tools lab-still

The picture is taken of the lab itself; the numbers come from the library, and `tests/site/test_lab_numbers.py` computes them again.
"""

import json
from pathlib import Path

from tools.publish.browser import installed_chromium

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "_build/html/book/lab.html"
PICTURES = {"lab.png": 900, "lab-phone.png": 390}
NUMBERS = ROOT / "book/_lab/still.json"
MODEL, TEXT, ANSWER = "two-layer", "Mr. Dursley had a neighbour who disliked Mr. D", "ur"


def effects() -> tuple[float, dict[str, tuple[float, float]]]:
    """The probability of the answer; what each head and wire adds to its logit, and the probability without it."""
    import circuitkit as ck

    model = ck.load_model(MODEL)
    tokens, answer = model.to_tokens(TEXT), model.to_single_token(ANSWER)

    def without(cuts):
        logits = ck.run(model, tokens, without=cuts).logits[0, -1]
        return float(logits[answer] - logits.mean()), float(logits.softmax(-1)[answer])

    whole, probability = without([])
    names = [
        *ck.heads_of(model).names,
        *(wire for kind in "QKV" for wire in ck.effects.wires(model, kind)),
    ]
    return probability, {
        name: (whole - logit, p) for name in names for logit, p in [without([name])]
    }


def numbers() -> dict:
    """What the figure writes down: heads and wires worth a logit or more, the largest first."""
    probability, found = effects()
    kept = sorted(
        (name for name in found if abs(found[name][0]) >= 1), key=lambda name: -abs(found[name][0])
    )
    rows = [
        [name, f"{found[name][0]:+.1f}".replace("-", "−"), f"{found[name][1]:.0%}"] for name in kept
    ]
    return {"text": TEXT, "answer": ANSWER, "whole": f"{probability:.0%}", "rows": rows}


def pictures() -> None:
    from playwright.sync_api import sync_playwright

    if not PAGE.is_file():
        raise SystemExit(f"{PAGE} is not there. Build the book first: make book")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_chromium())
        for name, width in PICTURES.items():
            page = browser.new_page(
                viewport={"width": width, "height": 1200},
                device_scale_factor=2,
                color_scheme="light",
            )
            page.set_default_timeout(300_000)
            page.goto(PAGE.as_uri())
            page.get_by_role("button", name="Start the model").click()
            page.wait_for_selector(".cl-lab[data-drawn]:not([aria-busy])")
            page.evaluate("document.fonts.ready")
            page.mouse.move(0, 0)
            page.locator(".cl-circuit").screenshot(path=ROOT / "book/_static" / name)
        browser.close()


def main() -> None:
    NUMBERS.write_text(json.dumps(numbers(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    pictures()


if __name__ == "__main__":
    main()
