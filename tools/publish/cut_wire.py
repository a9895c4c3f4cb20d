"""Take the moving picture of the README: a pointer clicks a wire in the lab, and the prediction falls. Its end is the picture of links.

    make book; python -m tools cut-wire

The variable CIRCUITKIT_HTML names another folder with the built book.
"""

import io

from tools.publish.browser import installed_chromium
from tools.publish.lab_still import HTML, READY, ROOT

PICTURE = ROOT / "book/_static/cut-wire.webp"
WIRE = "L0H1->L1H3.K"
HEIGHT, STEPS = 612, 9
HIDDEN = ".cl-tokens, .cl-more, .bd-header-article, .cl-finder, .cl-actions, .cl-wire-list, .cl-why, .cl-why ~ *, .cl-pointed, .cl-legend, .cl-echo, .skip-link, #pst-skip-link"
POINTER = """([x, y]) => {
    document.querySelector("#pointer")?.remove();
    document.body.insertAdjacentHTML("beforeend", `<svg id="pointer" viewBox="0 0 16 22" width="16" height="22"
        style="position:fixed;left:${x}px;top:${y}px;z-index:9999;pointer-events:none">
        <path d="M1 1v16l4-4 3 7 3-1.300-3-6.700h6z" fill="#111" stroke="#fff"/></svg>`);
}"""
MIDDLE = """wire => {
    const {x, y} = wire.getPointAtLength(wire.getTotalLength() / 2);
    const {left, top} = wire.ownerSVGElement.getBoundingClientRect();
    return [x + left, y + top];
}"""


def main() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_chromium())
        page = browser.new_page(
            viewport={"width": 1280, "height": 1000}, device_scale_factor=1.5, color_scheme="light"
        )
        page.goto((HTML / "book/intro.html").as_uri())
        page.locator("circuit-lab").scroll_into_view_if_needed()
        page.wait_for_selector(READY, timeout=60_000)
        page.add_style_tag(content=f"{HIDDEN} {{ display: none !important }}")
        page.locator(".cl-try").evaluate(
            "hint => scrollBy(0, hint.getBoundingClientRect().top - 100)"
        )
        page.wait_for_timeout(500)
        box = page.locator(".cl-lab").bounding_box()
        top = page.locator(".cl-try").bounding_box()["y"] - 4
        clip = {"x": box["x"], "y": top, "width": box["width"], "height": HEIGHT}
        x, y = page.locator(f"[data-wire='{WIRE}']").first.evaluate(MIDDLE)
        frames = []

        def take(place) -> None:
            page.evaluate(POINTER, place)
            frames.append(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB"))

        start = clip["x"] + 520, clip["y"] + 480
        for step in range(STEPS):
            share = step / (STEPS - 1)
            take([start[0] + share * (x - start[0]), start[1] + share * (y - start[1])])
        page.mouse.click(x, y)
        page.wait_for_selector(".cl-wire.cl-cut")
        page.wait_for_selector(READY)
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        take([x, y])
        browser.close()
    frames[-1].save(PICTURE.with_suffix(".png"), optimize=True)
    durations = [1600, *[60] * (STEPS - 2), 500, 4000]
    frames[0].save(
        PICTURE,
        save_all=True,
        append_images=frames[1:],
        duration=durations,
        loop=0,
        quality=80,
        method=6,
    )


if __name__ == "__main__":
    main()
