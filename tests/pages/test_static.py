"""The built book as files: no resource of another host, every internal link and anchor exists, no page is lost."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from browser_tools import HTML, ROOT, pages

from tools.publish.home import home

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "link": "href",
}
RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "modulepreload",
}  # the <link>s that a browser follows


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
        start = root if path.name == "404.html" else path.parent  # it says so in its <base>
        target = path if not parts.path else (start / unquote(parts.path).lstrip("/")).resolve()
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
        path.relative_to(ROOT)
        for kind in ("md", "ipynb")
        for path in (ROOT / "book").rglob(f"*.{kind}")
    }
    assert {path.with_suffix("") for path in there if not re.search(r"/[._]", f"/{path}")} == listed


def test_every_public_package_has_a_page_of_the_reference():
    """The page's names come from the package; that there is a page must be said once in the table of contents."""
    import circuitkit

    packages = {
        name
        for name in circuitkit.__all__
        if (ROOT / "src/circuitkit" / name / "__init__.py").is_file()
    }
    assert {Path(page).stem for page in pages() if page.startswith("book/api/")} == packages


def names_of_the_reference() -> list[str]:
    import importlib

    import circuitkit

    root = [name for name in circuitkit.__all__ if not (ROOT / "src/circuitkit" / name).is_dir()]
    packages = [name for name in circuitkit.__all__ if name not in root]
    return [f"circuitkit.{name}" for name in root] + [
        f"circuitkit.{package}.{name}"
        for package in packages
        for name in importlib.import_module(f"circuitkit.{package}").__all__
        if name not in root
    ]


def test_every_public_name_has_an_entry():
    entries = set.union(
        *(read(HTML / page).names for page in pages() if page.startswith("book/api"))
    )
    assert [name for name in names_of_the_reference() if name not in entries] == []


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


def test_colab_links_come_from_the_one_setting_and_no_page_names_a_placeholder():
    here = home()
    for page in pages():
        source = Path(page).with_suffix(".ipynb")
        links = [
            link
            for link in read(HTML / page).links
            if "colab.research.google.com" in link or here.url in link
        ]
        if not here.public:
            assert links == []
        elif (ROOT / source).exists():
            assert here.colab(str(source)) in links


def test_formulas_and_views_use_scripts_of_the_book():
    for name in (
        "circuitsvis.js",
        *(
            f"mathjax/{part}.js"
            for part in ("core", "input/tex", "output/chtml", "output/chtml/fonts/tex")
        ),
        "mathjax/output/chtml/fonts/woff-v2/MathJax_Main-Regular.woff",
    ):
        assert (HTML / "_static" / name).stat().st_size > 10_000
