"""Take the still pictures: of the lab, for a desk and for a phone, and of a model that was trained in the page.

    make book; python -m tools lab-still

The variable CIRCUITKIT_HTML names another folder with the built book.
"""

import os
from pathlib import Path

from tools.publish.browser import installed_chromium

ROOT = Path(__file__).resolve().parents[2]
HTML = Path(os.environ.get("CIRCUITKIT_HTML", ROOT / "_build/html"))
PICTURES = {
    "lab.png": ("lab", 900),
    "lab-phone.png": ("lab", 390),
    "home.png": ("intro", 900),
    "home-phone.png": ("intro", 390),
}
BIRTH = "birth.png"
READY = ".cl-lab[data-drawn]:not([aria-busy])"


def main() -> None:
    from playwright.sync_api import sync_playwright

    page_files = [HTML / "book/lab.html", HTML / "book/born-in-your-tab.html"]
    for page_file in page_files:
        if not page_file.is_file():
            raise SystemExit(f"{page_file} does not exist. Build the book first: make book")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_chromium())
        looks = {"device_scale_factor": 2, "color_scheme": "light"}
        for name, (page_name, width) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": 1200}, **looks)
            page.goto((HTML / f"book/{page_name}.html").as_uri())
            page.get_by_role("button", name="Start the model").click()
            page.wait_for_selector(READY, timeout=60_000)
            page.add_style_tag(content=".cl-circuit .cl-mark { display: none }")
            page.mouse.move(0, 0)
            page.locator(".cl-circuit").screenshot(path=ROOT / "book/_static" / name)
        page = browser.new_page(viewport={"width": 1280, "height": 1200}, **looks)
        page.goto(page_files[1].as_uri())
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_role("button", name="Start again").wait_for(timeout=120_000)
        page.locator(".cb-main").screenshot(path=ROOT / "book/_static" / BIRTH)
        browser.close()
