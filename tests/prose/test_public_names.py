"""Pages import public names only."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = re.compile(r"\b(?:circuitkit|ck)(?:\.\w+)*\.(_[a-z]\w*)|\bfrom circuitkit[\w.]* import [^\n]*?\b(_[a-z]\w*)")


def code(path: Path) -> str:
    """The code of a notebook, or the code blocks and spans of a page in Markdown."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        blocks = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    else:
        blocks, prose = [], text
    return "\n".join([*blocks, *re.findall(r"```[\w{}-]*\n(.*?)```", prose, re.S), *re.findall(r"`([^`\n]+)`", prose)])


def pages() -> list[Path]:
    found = [
        path for kind in ("*.ipynb", "*.md") for folder in ("book", "exercises") for path in (ROOT / folder).rglob(kind)
    ]
    return sorted(path for path in found if not re.search(r"/[._]", str(path.relative_to(ROOT)))) + [ROOT / "README.md"]


@pytest.mark.parametrize(
    "text", ["from circuitkit.superposition._subsets import a", "ck._contract.public", "from circuitkit import _heads"]
)
def test_a_private_name_is_recognised(text):
    assert PRIVATE.search(text)


def test_pages_use_public_names_only():
    found = {str(path.relative_to(ROOT)): PRIVATE.findall(code(path)) for path in pages()}
    found.pop("book/house.md", None)  # tells contributors where things lie
    assert {page: names for page, names in found.items() if names} == {}
