"""With an address, pages with code lead to Colab and to their source; without one, no page names an address."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tests.support.site import HTML
from tools.publish import address
from tools.publish.home import Home, home

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = Home("https://github.com/Ann/a-book", "v1")
NOWHERE = Home(address.PLACEHOLDER, "main")
FIRST = "book/1-residual-stream/circuit-in-one-picture"
CONTENTS = f"""format: jb-book
root: book/intro
chapters:
  - file: book/1-residual-stream/index
    sections:
      - file: {FIRST}
"""
FILES = (*address.MARKDOWN, *address.LINES, "_config.yml", "_toc.yml", "CHANGELOG.md")


def copy_of_the_sources(folder: Path, place: Home) -> None:
    for name in ("book", "exercises", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("src", "tests"):
        folder.joinpath(name).symlink_to(ROOT / name)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    for path, text in address.texts(folder, place).items():
        path.write_text(text, "utf-8")


def build(folder: Path) -> Path:
    """Build the book of a folder; returns the folder of its pages."""
    path = os.pathsep.join([str(folder), str(folder / "src")])
    book = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "--quiet", "-n"]
    settings = os.environ | {"PYTHONPATH": path}
    made = subprocess.run(
        [sys.executable, *book], cwd=folder, env=settings, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    return folder / "_build/html"


def other_kind(folder: Path) -> tuple[Path, Home]:
    """Two pages that are built with the kind of address that the book does not have, and this address."""
    place = NOWHERE if home().public else PUBLIC
    copy_of_the_sources(folder, place)
    folder.joinpath("_toc.yml").write_text(CONTENTS, "utf-8")
    return build(folder), place


def links(page: Path) -> dict[str, str]:
    buttons = BeautifulSoup(page.read_text("utf-8"), "html.parser").select(".ck-buttons a")
    return {button.get_text(): button["href"] for button in buttons}


def check(html: Path, place: Home, names: list[str]) -> None:
    """Every page with code leads to Colab and to its source, or no page leads anywhere."""
    for name in names:
        found = links(html / f"{name}.html")
        notebook = name.replace("book/", "exercises/").removesuffix("/exercises")
        opened = f"{notebook if name.endswith('/exercises') else name}.ipynb"
        assert found.get("Open in Colab", "") == place.colab(opened)
        assert found.get("Source", "") == place.source(f"{name}.ipynb")
    for page in html.rglob("*.html"):
        text = page.read_text("utf-8")
        assert "circuitkit.invalid" not in text
        assert place.public or "colab.research.google.com/github" not in text


def test_pages_lead_to_the_repository_if_it_has_an_address():
    check(HTML, home(), [FIRST])


@pytest.mark.weekly
def test_pages_that_are_built_with_the_other_kind_of_address_follow_it(tmp_path):
    html, place = other_kind(tmp_path)
    check(html, place, [FIRST])


@pytest.mark.weekly
def test_the_whole_book_leads_to_the_repository(tmp_path):
    copy_of_the_sources(tmp_path, PUBLIC)
    names = [
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / "book").glob("**/*.ipynb")
    ]
    check(build(tmp_path), PUBLIC, names)
