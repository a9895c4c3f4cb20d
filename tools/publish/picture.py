"""Make the animated picture of the README: a wire is cut in the lab of the home page, and the probability falls.

    make book; python -m tools picture

Also writes the last frame as a still picture, which other sites show of a link to the book.
The variable CIRCUITKIT_HTML names another folder with the built book.
"""

import io

from tools.publish.browser import installed_chromium
from tools.publish.lab_still import HTML, READY, ROOT

ANIMATION = ROOT / "book/_static/cut-wire.webp"
CARD = ROOT / "book/_static/cut-wire.png"
STEPS = 9  # frames in which the pointer moves to the wire
STYLE = """
.cl-circuit .cl-mark .cl-disc { animation: none !important }
.cl-fill, .cl-wire-list, .cl-actions, .cl-left > p, .cl-tokens, .cl-more { display: none !important }
.cl-try { min-height: 2.9em !important }
.cl-lab { border: 0 !important; border-radius: 0 !important }
#pointer { position: absolute; z-index: 9; width: 26px; height: 26px; pointer-events: none }
"""
POINTER = """() => {
    const arrow = '<svg viewBox="0 0 16 16"><path d="M2 1v12l3.2-3 2.2 5 2.1-1-2.2-4.8H12z" fill="#111" stroke="#fff"/></svg>';
    document.body.insertAdjacentHTML("beforeend", `<div id="pointer">${arrow}</div>`);
}"""
MOVE = "([x, y]) => Object.assign(document.querySelector('#pointer').style, {left: `${x}px`, top: `${y}px`})"


def frames(page):
    """The frames as PNG data with the milliseconds that each stays."""
    clip = page.locator(".cl-lab").bounding_box()
    mark = page.locator(".cl-circuit .cl-mark").bounding_box()
    target = mark["x"] + mark["width"] / 2 - 3, mark["y"] + mark["height"] / 2 - 2
    start = target[0] + 260, target[1] + 150
    for step in range(STEPS + 1):
        part = step / STEPS
        place = [a + (b - a) * part * (2 - part) for a, b in zip(start, target, strict=True)]
        page.evaluate(MOVE, place)
        yield page.screenshot(clip=clip), 1600 if step == 0 else 500 if step == STEPS else 60
    page.mouse.click(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    page.wait_for_selector(".cl-wire.cl-cut", state="attached")
    page.wait_for_selector(READY)
    page.wait_for_timeout(600)
    yield page.screenshot(clip=clip), 4000


def main() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    home = HTML / "book/intro.html"
    if not home.is_file():
        raise SystemExit(f"{home} does not exist. Build the book first: make book")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_chromium())
        size = {"width": 1280, "height": 1000}
        page = browser.new_page(viewport=size, device_scale_factor=1.5, color_scheme="light")
        page.goto(home.as_uri())
        page.wait_for_selector(READY, timeout=60_000)
        page.add_style_tag(content=STYLE)
        page.evaluate(POINTER)
        page.wait_for_timeout(300)
        made = [(Image.open(io.BytesIO(data)).convert("RGB"), time) for data, time in frames(page)]
        browser.close()
    images, times = [image for image, _ in made], [time for _, time in made]
    images[0].save(
        ANIMATION,
        save_all=True,
        append_images=images[1:],
        duration=times,
        loop=0,
        quality=80,
        method=6,
    )
    images[-1].save(CARD, optimize=True)
    print(f"{ANIMATION}: {ANIMATION.stat().st_size / 1000:.0f} KB, {len(images)} frames")


if __name__ == "__main__":
    main()
