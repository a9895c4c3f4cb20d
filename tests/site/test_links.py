"""Links that Sphinx does not check: those in raw HTML, which our extensions and notebook outputs write."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlparse

import circuitkit
from tests.support.site import HTML, ROOT, pages


@cache
def anchors(path: Path) -> set[str]:
    return set(re.findall(r'\b(?:id|name)="([^"]+)"', path.read_text("utf-8")))


def broken_links(path: Path) -> list[str]:
    """Links of a page to a file or an anchor that does not exist."""
    broken = []
    for link in re.findall(r'<a\b[^>]*\bhref="([^"]+)"', path.read_text("utf-8")):
        parts = urlparse(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        anchor = unquote(parts.fragment) if target.suffix == ".html" else ""
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_every_internal_link_leads_to_an_existing_place():
    found = {name: broken_links(HTML / name) for name in pages()}
    assert {name: links for name, links in found.items() if links} == {}


def test_every_public_package_has_a_page_of_the_reference():
    root = ROOT / "src/circuitkit"
    packages = {
        name
        for name in circuitkit.__all__
        if (root / name / "__init__.py").is_file() or (root / f"{name}.py").is_file()
    }
    with_pages = {Path(page).stem for page in pages() if page.startswith("book/api/")}
    assert with_pages == packages | {"course"}  # the course package has one page
