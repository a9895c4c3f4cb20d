"""The gallery of stored reports: a card for each, and a table of everything that they name; `reports.js` searches it."""

import csv
import re
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup

PAGE = "book/reports"
STORED = Path(__file__).resolve().parents[2] / "_static/reports"
NAMES = ("zero-layer", "one-layer", "two-layer", "two-layer-mlp", "smollm2-135m", "minilm")
CARD = re.compile(r"<!-- report: (\S+) -->")
ROWS = "<!-- reports: rows -->"


def card(name: str) -> str:
    """What a report found, its first picture, and links to the page and the table."""
    page = stored_page(name)
    found = page.select_one("#found ol")
    for link in found.select("a"):
        link["href"] = f"../_static/reports/{name}.html{link['href']}"
    picture = page.select_one("#found svg") or page.select_one("#behaviour svg:has(g path)")
    links = (
        f'<a href="../_static/reports/{name}.html">Open the report</a> · '
        f'<a href="../_static/reports/{name}.csv">its numbers as a table</a>'
    )
    drawn = f'<div class="ck-report-picture">{picture}</div>' if picture else ""
    return f'<div class="ck-report">{found}{drawn}<p>{links}</p></div>'


def stored_page(name: str) -> BeautifulSoup:
    """The page of a stored report."""
    return BeautifulSoup((STORED / f"{name}.html").read_text("utf-8"), "html.parser")


def rows() -> str:
    """A table of all lines that the stored reports name, and the field in which a reader types."""
    body = "\n".join(row for name in NAMES for row in rows_of(name))
    return f"""<form id="ck-find" role="search" hidden><label>Find a head or a word
<input type="search" name="words" placeholder="induction" autocomplete="off"></label> <output></output></form>
<div class="ck-found" tabindex="0" role="region" aria-label="Everything that the reports name">
<table><thead><tr><th scope="col">Report</th><th scope="col">Head, wire or circuit</th><th scope="col">What is named</th>
<th scope="col">Value</th><th scope="col">Control</th></tr></thead>
<tbody>
{body}
</tbody></table></div>"""


def rows_of(name: str) -> list[str]:
    """A row for each line that a report names, with a link to the line or to the card of the head."""
    page = stored_page(name)
    title = page.h1.text
    places = {element["id"] for element in page.select("[id]")}
    with (STORED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["named"] == "True"]
    found = []
    for line in lines:
        place = next((place for place in anchors(line) if place in places), "")
        address = f"../_static/reports/{name}.html{'#' if place else ''}{place}"
        what = f"{line['measure']}: {line['text']}" if line["text"] else line["measure"]
        cells = [escape(what), number(line["value"]), number(line["control"])]
        found.append(
            f'<tr><td>{escape(title)}</td><th scope="row"><a href="{address}">{escape(line["name"])}</a></th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    return found


def anchors(line: dict) -> list[str]:
    """Where a line may be on its page."""
    from circuitkit.reports.lines import Line
    from circuitkit.reports.summary import anchor

    return [anchor(Line(line["name"], line["measure"], 0.0, text=line["text"])), line["name"]]


def number(text: str) -> str:
    """A number with two decimals, or nothing."""
    return f"{float(text):z.2f}" if text else ""


def fill(app, docname, source) -> None:
    if docname != PAGE:
        return
    for path in STORED.iterdir():
        app.env.note_dependency(str(path))
    text = CARD.sub(lambda mark: raw(card(mark[1])), source[0])
    source[0] = text.replace(ROWS, raw(rows()))


def raw(html: str) -> str:
    return f"```{{raw}} html\n{html}\n```"


def scripts(app, pagename, templatename, context, doctree) -> None:
    if pagename == PAGE:
        app.add_css_file("reports.css")
        app.add_js_file("reports.js", loading_method="defer")


def setup(app) -> None:
    app.connect("source-read", fill)
    app.connect("html-page-context", scripts)
