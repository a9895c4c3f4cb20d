"""Print the whole built book as one PDF with headless Chromium.

    make pdf     or     python -m tools pdf [--html FOLDER] [--to FILE]

The pages are joined into one document, so that links between chapters stay links, headings become bookmarks and pages
are counted once. It is printed twice: the first time tells on which page each heading falls, for the table of contents.
"""

import argparse
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path

import yaml
from bs4 import BeautifulSoup, Tag

from tools.check.machine import get_browser

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build/html"
TITLE, SUBTITLE = "circuitkit", "Transformer circuits you can run"
# What has no use on paper, or is there in another form: a still picture for a live view, the next cell for a setup.
SCREEN_ONLY = (
    "script:not([src*=mathjax]), style, .headerlink, .viewcode-link, .ck-table, .ck-zoom, .ck-slider, .ck-definition, "
    ".copybtn, button, form, input, select, .prev-next-area, noscript"
)


@dataclass
class Chapter:
    """A page of the book: its key in the joined document, its part of the contents, its body."""

    key: str
    part: str
    page: str
    body: Tag

    @property
    def title(self) -> str:
        return words(self.body.find("h1"))

    def sections(self) -> list[tuple[str, str]]:
        """The anchor and the heading of each section of the second level."""
        found = []
        for heading in self.body.find_all("h2"):
            section = heading.find_parent(["section", "div"])
            found.append((section["id"], words(heading)))
        return found


def words(element: Tag) -> str:
    return " ".join(element.get_text().split()).rstrip("#¶")


def listed(toc: dict) -> list[tuple[str, str]]:
    """The part and the page of every entry of the table of contents, in reading order."""
    found = [("", toc["root"])]

    def walk(part: str, entries: list) -> None:
        for entry in entries:
            if "file" in entry:
                found.append((part, entry["file"]))
            walk(part, entry.get("sections", []))

    for part in toc.get("parts", [toc]):
        walk(part.get("caption", ""), part.get("chapters", []))
    return [(part, re.sub(r"\.(md|ipynb)$", "", file) + ".html") for part, file in found]


def chapters(html: Path) -> list[Chapter]:
    """Every page, with its anchors and its links made into those of one document."""
    pages = listed(yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8")))
    keys = {page: f"p{number:02d}" for number, (_, page) in enumerate(pages)}
    return [Chapter(keys[page], part, page, body(html, page, keys)) for part, page in pages]


def body(html: Path, page: str, keys: dict[str, str]) -> Tag:
    article = BeautifulSoup((html / page).read_text("utf-8"), "html.parser").select_one("article")
    for element in article.select(SCREEN_ONLY):
        element.decompose()
    for cell in article.select("div.cell.tag_hide-cell"):
        if "google.colab" in cell.get_text():
            cell.decompose()
    for details in article.find_all("details"):
        details["open"] = ""
        # "Show the solution" and "Hide the solution" are one button's two states.
        if state := details.summary and details.summary.select_one(".collapsed"):
            details.summary.string = re.sub(r"^Show ", "", words(state)).capitalize()
    folder = (html / page).parent
    for element in article.find_all(True):
        for attribute in ("aria-describedby", "aria-labelledby", "loading", "tabindex"):
            del element[attribute]
        if element.get("id"):
            element["id"] = f"{keys[page]}-{element['id']}"
        if element.name == "img" and not element["src"].startswith("data:"):
            element["src"] = os.path.relpath(folder / element["src"], html)
        if element.name == "a" and element.get("href"):
            element["href"] = inside(element["href"], folder, html, page, keys)
            if not element["href"]:
                element.unwrap()
    return article


def inside(link: str, folder: Path, html: Path, page: str, keys: dict[str, str]) -> str:
    """The same link in the joined document; empty when it leads to a file that is not printed."""
    if re.match(r"[a-z]+:", link):
        return link
    path, _, anchor = link.partition("#")
    target = os.path.relpath(folder / path, html) if path else page
    if target not in keys:
        return ""
    return f"#{keys[target]}-{anchor}" if anchor else f"#{keys[target]}"


def joined(html: Path, book: list[Chapter], numbers: dict[str, int]) -> str:
    """The document to print; `numbers` gives the page of each anchor as far as known."""
    head = BeautifulSoup((html / book[0].page).read_text("utf-8"), "html.parser").head
    sheet = head.select_one('link[href*="book.css"]')["href"].removeprefix("../")
    heads = "".join(
        f'@page {chapter.key} {{ @top-right {{ content: "{css(chapter.title)}"; font: 8.5pt sans-serif; color: #555; }} }}\n'
        f"#{chapter.key} {{ page: {chapter.key}; }}\n"
        for chapter in book
    )
    parts = [
        f'<section class="chapter" id="{chapter.key}">{chapter.body.decode_contents()}</section>'
        for chapter in book
    ]
    return (
        f'<!doctype html><html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">'
        f"<title>{TITLE}: {SUBTITLE.lower()}</title>"
        f'<link rel="stylesheet" href="{sheet}"><style>{Path(__file__).with_suffix(".css").read_text("utf-8")}{heads}</style>'
        '<script>window.MathJax = {options: {processHtmlClass: "math"}}</script>'
        '<script defer src="_static/mathjax/tex-chtml.js"></script></head><body>'
        f'<section class="title-page"><p class="book-title">{TITLE}</p><p class="subtitle">{SUBTITLE}</p>'
        '<p class="by">The circuitkit authors<br>Text and code under the MIT licence. '
        "Every number was recomputed before it was printed.</p></section>"
        f"{contents(book, numbers)}{''.join(parts)}</body></html>"
    )


def css(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def contents(book: list[Chapter], numbers: dict[str, int]) -> str:
    lines, part = [], ""
    for chapter in book:
        if chapter.part != part:
            part = chapter.part
            lines.append(f'<li class="part">{escape(part)}</li>')
        inner = ""
        if re.match(r"\d+\. ", chapter.title):
            entries = "".join(
                f"<li>{entry(anchor, title, numbers)}</li>" for anchor, title in chapter.sections()
            )
            inner = f"<ol>{entries}</ol>"
        lines.append(f"<li>{entry(chapter.key, chapter.title, numbers)}{inner}</li>")
    return f'<section class="contents"><h1>Contents</h1><ol>{"".join(lines)}</ol></section>'


def entry(anchor: str, title: str, numbers: dict[str, int]) -> str:
    return f'<a href="#{anchor}">{escape(title)}<span>{numbers.get(anchor, "000")}</span></a>'


def write(html: Path, pdf: Path) -> Path:
    """Print the book, look up the page of each heading, and print it again with the numbers."""
    from playwright.sync_api import sync_playwright
    from pypdf import PdfReader

    if not (html / "index.html").is_file():
        raise SystemExit(f"{html} holds no built book. Build it first: make book")
    book = chapters(html)
    pdf.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=html, prefix=".print-", suffix=".html", encoding="utf-8"
    ) as file:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=get_browser(), args=["--no-sandbox"]
            )
            page = browser.new_context(offline=True, color_scheme="light").new_page()
            numbers: dict[str, int] = {}
            for _ in range(2):
                file.seek(0)
                file.truncate()
                file.write(joined(html, book, numbers))
                file.flush()
                page.goto(Path(file.name).as_uri(), wait_until="load", timeout=120_000)
                page.evaluate(
                    "MathJax.startup.promise.then(() => document.fonts.ready).then(() => 0)"
                )
                page.pdf(
                    path=pdf,
                    prefer_css_page_size=True,
                    print_background=True,
                    tagged=True,
                    outline=True,
                )
                numbers = page_numbers(PdfReader(pdf))
            browser.close()
    mend_bookmarks(
        pdf,
        [
            words(heading)
            for chapter in book
            for heading in chapter.body.find_all(re.compile("h[1-6]"))
        ],
    )
    titles, pictures = (
        [chapter.title for chapter in book],
        sum(len(chapter.body.find_all("img")) for chapter in book),
    )
    if wrong := faults(PdfReader(pdf), titles, pictures):
        raise SystemExit(f"{pdf} is not as it should be:\n  " + "\n  ".join(wrong))
    return pdf


def mend_bookmarks(pdf: Path, headings: list[str]) -> None:
    """Chromium loses the blank where a heading is broken into two lines; the headings have it."""
    from pypdf import PdfWriter
    from pypdf.generic import NameObject, TextStringObject

    whole = {"".join(heading.split()): heading for heading in headings}
    writer = PdfWriter(clone_from=pdf)

    def mend(mark) -> None:
        while mark is not None:
            mark = mark.get_object()
            squeezed = "".join(str(mark.get("/Title", "")).split())
            if squeezed in whole:
                mark[NameObject("/Title")] = TextStringObject(whole[squeezed])
            mend(mark.get("/First"))
            mark = mark.get("/Next")

    mend(writer.root_object.get("/Outlines"))
    writer.add_metadata({"/Author": "The circuitkit authors"})
    writer.write(pdf)


def page_numbers(reader) -> dict[str, int]:
    """The page, counted from 1, of each anchor that a link leads to."""
    found = {}
    for name, target in reader.named_destinations.items():
        number = reader.get_destination_page_number(target)
        if number is not None:
            found[name.lstrip("/")] = number + 1
    return found


def faults(reader, titles: list[str], pictures: int) -> list[str]:
    """What is wrong with a printed book: a chapter that is no bookmark, an empty page, a picture that is not there."""
    marks = {mark.title for mark in bookmarks(reader.outline)}
    found = [f"no bookmark for the chapter {title!r}" for title in titles if title not in marks]
    drawn = 0
    for number, page in enumerate(reader.pages, 1):
        objects = (page.get("/Resources") or {}).get("/XObject") or {}
        images = sum(objects[name].get_object().get("/Subtype") == "/Image" for name in objects)
        drawn += images
        # A running head and a page number are on an empty page too.
        if not images and len("".join(page.extract_text().split())) < 20 + max(
            map(len, titles), default=0
        ):
            found.append(f"page {number} is empty or nearly so")
    if drawn < pictures:
        found.append(f"{drawn} pictures are drawn of {pictures}")
    return found


def bookmarks(outline: list) -> list:
    return [
        mark
        for entry in outline
        for mark in (bookmarks(entry) if isinstance(entry, list) else [entry])
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--html", type=Path, default=HTML, help="the built book")
    parser.add_argument(
        "--to", type=Path, default=ROOT / "_build/circuitkit-book.pdf", help="the PDF"
    )
    options = parser.parse_args(arguments)
    pdf = write(options.html, options.to)
    print(f"{pdf}: {pdf.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
