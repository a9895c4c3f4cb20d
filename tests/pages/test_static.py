"""The built book as files: no resource of another host, every internal link and anchor exists, no page is lost."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
import yaml
from browser_tools import HTML, ROOT, pages

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload"}  # the <link>s that a browser follows


class Page(HTMLParser):
    """What a page loads, links to, and can be linked to."""

    def __init__(self, path: Path):
        super().__init__()
        self.loads, self.links, self.names = [], [], set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.names |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        relation = set((given.get("rel") or "").split())
        if tag in LOADS and given.get(LOADS[tag]) and (tag != "link" or relation & RELATIONS):
            self.loads.append(given[LOADS[tag]])


@cache
def read(path: Path) -> Page:
    return Page(path)


def built() -> list[Path]:
    found = sorted(HTML.rglob("*.html")) if HTML.is_dir() else []
    return [path for path in found if "_static" not in path.parts]


def broken_links(path: Path, root: Path) -> list[str]:
    """Links of a page to a file or an anchor that does not exist."""
    broken = []
    for link in read(path).links:
        parts = urlparse(link)
        if parts.scheme or parts.netloc:
            continue
        target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
        if target.is_dir():
            target /= "index.html"
        if (
            not target.is_file()
            or root not in target.parents
            or parts.fragment
            and target.suffix == ".html"
            and unquote(parts.fragment) not in read(target).names
        ):
            broken.append(link)
    return broken


def test_the_book_is_built():
    assert built(), "the book is not built; run `make book` first"
    assert not [page for page in pages() if not (HTML / page).is_file()]


def test_every_page_file_is_in_the_table_of_contents():
    """A chapter that lies in book/ and is not listed would never be checked."""
    listed = {Path(page).with_suffix("") for page in pages()}
    there = {
        path.relative_to(ROOT).with_suffix("")
        for path in (ROOT / "book").glob("[!_]*.*")
        if path.suffix in (".md", ".ipynb")
    }
    assert there == listed


@pytest.mark.parametrize("path", built(), ids=lambda path: str(path.relative_to(HTML)))
def test_nothing_is_loaded_from_another_host(path):
    outside = [address for address in read(path).loads if urlparse(address).netloc]
    assert outside == []


def test_no_style_sheet_or_own_script_loads_from_another_host():
    found = {}
    for path in HTML.rglob("*.css"):
        text = path.read_text("utf-8", errors="replace")
        if outside := re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]+", text):
            found[path.name] = outside
    assert found == {}


@pytest.mark.parametrize("path", built(), ids=lambda path: str(path.relative_to(HTML)))
def test_internal_links_lead_somewhere(path):
    assert broken_links(path, HTML) == []


def test_the_link_check_can_fail(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a> <a href="b.html#no">2</a> <a href="c.html">3</a> <a href="#x">4</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there">')
    assert broken_links(tmp_path / "a.html", tmp_path) == ["b.html#no", "c.html", "#x"]


def test_colab_and_source_links_come_from_the_one_setting():
    address = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    name = urlparse(address).path.strip("/")
    for page in pages():
        source = ROOT / Path(page).with_suffix(".ipynb")
        if source.exists():
            expected = f"https://colab.research.google.com/github/{name}/blob/main/{source.relative_to(ROOT)}"
            assert expected in read(HTML / page).links


def test_formulas_and_views_use_scripts_of_the_book():
    for name in (
        "circuitsvis.js",
        "mathjax/tex-chtml.js",
        "mathjax/output/chtml/fonts/woff-v2/MathJax_Main-Regular.woff",
    ):
        assert (HTML / "_static" / name).stat().st_size > 10_000
