"""Take the still picture of the lab, for a desk and for a phone.

    make book; python -m tools lab-still

The variable CIRCUITKIT_HTML names another folder with the built book.
"""

import os
from pathlib import Path

from tools.publish.browser import installed_chromium

ROOT = Path(__file__).resolve().parents[2]
HTML = Path(os.environ.get("CIRCUITKIT_HTML", ROOT / "_build/html"))
PICTURES = {"lab.png": 900, "lab-phone.png": 390}
READY = ".cl-lab[data-drawn]:not([aria-busy])"


def main() -> None:
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
