"""The gallery of reports as a reader uses it: every named line has a row, the search shows those that match, and links arrive."""

import csv
from pathlib import Path
from urllib.parse import unquote, urlparse

from bs4 import BeautifulSoup
from playwright.sync_api import expect

from tests.support.site import HTML

STORED = Path(__file__).resolve().parents[2] / "book/_static/reports"


def named_lines() -> list[dict]:
    """What the stored tables name."""
    lines = []
    for path in STORED.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            lines += [line for line in csv.DictReader(file) if line["named"] == "True"]
    return lines


def test_the_search_shows_the_rows_with_every_word(open_page, site):
    page = open_page(f"{site}/book/reports.html", again=True, width=1280).page
    rows = page.locator(".ck-found tbody tr:visible")
    lines = named_lines()
    expect(rows).to_have_count(len(lines))
    page.locator("#ck-find input").fill("Two-layer L1H3 copying")
    wanted = page.locator("tr:visible", has=page.get_by_role("link", name="L1H3", exact=True))
    expect(wanted.first).to_contain_text("copying")
    n_circuits = sum(line["measure"] == "induction" for line in lines)
    page.locator("#ck-find input").fill("induction")
    expect(rows).to_have_count(n_circuits)
    expect(page.locator("#ck-find output")).to_have_text(f"{n_circuits} of {len(lines)} lines")


def test_every_link_of_the_gallery_leads_to_a_line_of_a_report():
    gallery = BeautifulSoup((HTML / "book/reports.html").read_text("utf-8"), "html.parser")
    links = [urlparse(link["href"]) for link in gallery.select(".ck-report a, .ck-found a")]
    places = {
        path.name: {
            element["id"]
            for element in BeautifulSoup(path.read_text("utf-8"), "html.parser").select("[id]")
        }
        for path in STORED.glob("*.html")
    }
    assert len(gallery.select(".ck-report")) == len(places) == 6
    lost = [
        link.geturl()
        for link in links
        if link.fragment and unquote(link.fragment) not in places[Path(link.path).name]
    ]
    assert lost == []
    assert sum(bool(link.fragment) for link in links) > 50


def test_a_report_loads_nothing_else_and_finds_a_head(open_page, site):
    requests = []
    opened = open_page(f"{site}/_static/reports/two-layer.html", theme="dark")
    page = opened.page
    page.on("request", lambda request: requests.append(request.url))
    page.reload()
    page.fill("#find", "L1H3")
    shown = page.evaluate(
        "[...document.querySelectorAll('article')].filter(e => !e.hidden).map(e => e.id)"
    )
    assert shown == ["L1H3"]
    assert page.inner_text("#count") == "1 head"
    assert [url for url in requests if not url.startswith("data:")] == [page.url]
    assert opened.problems + opened.too_wide() == []
