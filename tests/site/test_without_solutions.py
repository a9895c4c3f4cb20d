"""The book that `make book SOLUTIONS=no` builds holds no solution, in no page and in no notebook that it offers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tests.support.site import ROOT

SOLVED = "the same page, solved"


def solutions(path: Path) -> list[str]:
    """The longest line of each solution in a notebook."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    codes = ["".join(c["source"]) for c in cells if "solution" in c["metadata"].get("tags", [])]
    return [max(code.splitlines(), key=len).strip() for code in codes]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    given = os.environ.get("CIRCUITKIT_WITHOUT_SOLUTIONS")
    if given:
        return Path(given)
    out = tmp_path_factory.mktemp("book")
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "--quiet"]
    command = [sys.executable, *command, "-n", "-W", "--keep-going", "--path-output", str(out)]
    environment = os.environ | {"SOLUTIONS": "no", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return out / "_build" / "html"


@pytest.mark.weekly
def test_neither_pages_nor_notebooks_hold_a_solution(site):
    notebooks = sorted(ROOT.glob("book/*/*.ipynb"))
    lines = {path.relative_to(ROOT): solutions(path) for path in notebooks}
    assert sum(map(len, lines.values())) > 40
    for name, found in lines.items():
        page = BeautifulSoup((site / name.with_suffix(".html")).read_text("utf-8"), "html.parser")
        offered = (site / "_sources" / name).read_text("utf-8")
        text = page.get_text()
        for line in found:
            assert line not in text, (name, line)
            assert json.dumps(line, ensure_ascii=False)[1:-1] not in offered, (name, line)
        assert "<summary>Solution</summary>" not in offered
        assert page.find("summary", string="Solution") is None


@pytest.mark.weekly
def test_exercise_pages_offer_only_the_readers_copy(site):
    copies = list(site.glob("_downloads/**/*.ipynb"))
    assert len(copies) == 5
    assert not any(SOLVED in path.read_text("utf-8") for path in copies)
    for page in site.glob("book/*/exercises.html"):
        text = page.read_text("utf-8")
        assert "Download to work on" in text
        assert "Download with solutions" not in text
