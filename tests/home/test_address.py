"""What a page says of its address: all of it once the book has a home, nothing before."""

import re
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from sphinx.testing.util import SphinxTestApp

from tools.publish import home as home_module

CONF = """
import sys
sys.path[:0] = [{root!r}, {extensions!r}]
project = "circuitkit"
extensions = ["circuitkit_book.home"]
ogp_image = "_static/induction.png"
ogp_social_cards = {{"enable": False}}
"""


@pytest.fixture(
    params=["https://github.com/Somebody/their-book", "https://nobody.invalid/their-book"]
)
def built(request, tmp_path, monkeypatch):
    """A book of two pages whose setting is this address."""
    here = home_module.home()._replace(url=request.param)
    monkeypatch.syspath_prepend(str(home_module.ROOT / "book/_ext"))
    import circuitkit_book.home as extension

    monkeypatch.setattr(extension, "home", lambda: here)
    source = tmp_path / "source"
    (source / "far").mkdir(parents=True)
    (source / "conf.py").write_text(
        CONF.format(root=str(home_module.ROOT), extensions=str(home_module.ROOT / "book/_ext"))
    )
    (source / "index.rst").write_text(
        "First\n=====\n\nHeads read and write.\n\n.. toctree::\n\n   far/away\n"
    )
    (source / "far/away.rst").write_text("Away\n====\n\nA page that lies deeper.\n")
    app = SphinxTestApp("html", srcdir=source, builddir=tmp_path / "out")
    app.build()
    warnings = app.warning.getvalue()
    app.cleanup()
    return here, app.outdir, warnings


def meta(path):
    soup = BeautifulSoup(path.read_text("utf-8"), "html.parser")
    told = {
        tag.get("property") or tag["name"]: tag["content"]
        for tag in soup.select("meta[property], meta[name]")
    }
    return told | {"canonical": [link["href"] for link in soup.select("link[rel=canonical]")]}


def test_pages_say_where_they_are_only_when_somebody_knows(built):
    here, folder, warnings = built
    assert not re.search("WARNING|ERROR", warnings)
    told = meta(folder / "far/away.html")
    assert told["description"] == told["og:description"] == "A page that lies deeper."
    everything = "".join(path.read_text("utf-8") for path in folder.rglob("*.html"))
    assert "nobody.invalid" not in everything
    if not here.public:
        assert told["canonical"] == []
        assert not {"og:url", "og:image"} & told.keys()
        assert not (folder / "sitemap.xml").exists()
        assert "github.io" not in everything
        return
    root = "https://somebody.github.io/their-book/"
    assert told["canonical"] == [root + "far/away.html"]
    assert told["og:url"] == root + "far/away.html"
    assert told["og:image"] == root + "_static/induction.png"
    listed = [
        place.text
        for place in ElementTree.parse(folder / "sitemap.xml").iter()
        if place.tag.endswith("}loc")
    ]
    assert {root + "index.html", root + "far/away.html"} <= set(listed)
    assert not any("404" in place for place in listed)


def test_a_wrong_address_leads_back_from_any_folder(built):
    here, folder, _ = built
    soup = BeautifulSoup((folder / "404.html").read_text("utf-8"), "html.parser")
    root = "/their-book/" if here.public else "/"
    assert soup.base["href"] == root
    assert soup.find("meta", {"name": "robots"})["content"] == "noindex"
    assert {f"{root}index.html", f"{root}search.html"} <= {
        link.get("href") for link in soup.select("a")
    }
    assert soup.h1.get_text() == "No page has this address"
