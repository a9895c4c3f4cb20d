"""Every page of the built book as contact sheets, to be looked at: four widths, both themes.

    python -m tools sheets OUT [--pages book/lab.html ...] [--widths 390 1280] [--themes dark] [--scale .5]

A page is read to its end, taken whole, cut into columns and laid out beside the next ones, with its name above each. What a
browser can measure stands in tests/pages; whether a picture says what it should is seen on a sheet.
"""

import argparse
import io
import sys
from contextlib import closing
from pathlib import Path

from tools.check.machine import get_browser
from tools.publish.lighthouse import HTML, ROOT, served
from tools.publish.pdf import listed

WIDTHS = {390: 844, 768: 1024, 1280: 900, 1600: 1000}
SCALE = {390: 0.5, 768: 0.33, 1280: 0.26, 1600: 0.23}
SHEET, ROOM, PIECE = (1560, 1500), 14, 3000
# What is far from the window is not painted by a browser that takes the whole page: here everything is near.
READ = """async () => {
    document.head.append(Object.assign(document.createElement('style'), {textContent: '* {content-visibility: visible !important}'}));
    for (let y = 0; y < document.documentElement.scrollHeight; y += 500) {
        window.scrollTo({top: y, behavior: 'instant'});
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    }
    await window.MathJax?.startup?.promise;
    await document.fonts.ready;
    window.scrollTo({top: 0, behavior: 'instant'});
    await new Promise(done => setTimeout(done, 400));
}"""


def taken(page, scale: float):
    """The whole page as one picture, window by window and made small: a page that is grown to be taken is laid out anew."""
    from PIL import Image

    page.set_viewport_size({"width": page.viewport_size["width"], "height": PIECE})
    page.wait_for_timeout(300)
    wide, high = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    whole = Image.new("RGB", (round(wide * scale), round(high * scale)), "white")
    for y in range(0, high, PIECE):
        at = page.evaluate(
            "async y => { scrollTo({top: y, behavior: 'instant'}); return scrollY; }", y
        )
        piece = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        piece = piece.resize(
            (whole.width, max(1, round(piece.height * scale))), Image.Resampling.LANCZOS
        )
        whole.paste(piece, (0, round(at * scale)))
    return whole


class Sheets:
    """Columns side by side, and a new sheet when one is full."""

    def __init__(self, out: Path, name: str):
        self.out, self.name, self.number, self.x, self.sheet = out, name, 0, 0, None

    def add(self, title: str, picture) -> None:
        from PIL import Image, ImageDraw

        step = SHEET[1] - ROOM
        for top in range(0, picture.height, step):
            if self.sheet is None or self.x + picture.width > SHEET[0]:
                self.close()
                self.sheet, self.x = Image.new("RGB", SHEET, "#888"), 0
            column = picture.crop((0, top, picture.width, min(top + step, picture.height)))
            self.sheet.paste(column, (self.x, ROOM))
            ImageDraw.Draw(self.sheet).text(
                (self.x + 2, 1), f"{title} {top}"[: picture.width // 6], fill="black"
            )
            self.x += picture.width + 8

    def close(self) -> None:
        if self.sheet is not None:
            path = self.out / f"{self.name}-{self.number:02}.png"
            self.sheet.save(path)
            print(path, flush=True)
            self.number, self.sheet = self.number + 1, None


def main(arguments: list[str] | None = None) -> int:
    import yaml
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder for the sheets")
    parser.add_argument("--pages", nargs="*", help="pages below the built book; all by default")
    parser.add_argument("--widths", nargs="*", type=int, choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--themes", nargs="*", choices=("light", "dark"), default=("light", "dark"))
    parser.add_argument(
        "--scale", type=float, help="of the pictures; each width has its own otherwise"
    )
    options = parser.parse_args(arguments)
    toc = listed(yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8")))
    pages = options.pages or [
        *(page for _, page in toc),
        "search.html",
        "genindex.html",
        "404.html",
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    with served(HTML) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=get_browser(), args=["--no-sandbox"])
        for width in options.widths:
            for theme in options.themes:
                sheets = Sheets(options.out, f"{width}-{theme}")
                context = browser.new_context(
                    viewport={"width": width, "height": WIDTHS[width]}, color_scheme=theme
                )
                context.add_init_script(
                    f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')"
                )
                with closing(context), closing(sheets):
                    for name in pages:
                        page = context.new_page()
                        page.goto(f"{address}/{name}", wait_until="load")
                        page.evaluate(READ)
                        sheets.add(name, taken(page, options.scale or SCALE[width]))
                        page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
