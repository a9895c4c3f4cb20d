"""Pages import public names only; public names are few, and each is used."""

import json
import re
from pathlib import Path

import pytest

from tools.check import public_names

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = re.compile(
    r"\b(?:circuitkit|ck)(?:\.\w+)*\.(_[a-z]\w*)|\bfrom circuitkit[\w.]* import [^\n]*?\b(_[a-z]\w*)"
)


def code(path: Path) -> str:
    """The code of a notebook, or the code blocks and spans of a page in Markdown."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        blocks = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        prose = "\n".join(
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
        )
    else:
        blocks, prose = [], text
    return "\n".join(
        [
            *blocks,
            *re.findall(r"```[\w{}-]*\n(.*?)```", prose, re.S),
            *re.findall(r"`([^`\n]+)`", prose),
        ]
    )


def pages() -> list[Path]:
    found = [
        path
        for kind in ("*.ipynb", "*.md")
        for folder in ("book", "exercises")
        for path in (ROOT / folder).rglob(kind)
    ]
    return sorted(
        path for path in found if not re.search(r"/[._]", str(path.relative_to(ROOT)))
    ) + [ROOT / "README.md"]


@pytest.mark.parametrize(
    "text",
    [
        "from circuitkit.superposition._verdict import a",
        "ck._contract.public",
        "from circuitkit import _heads",
    ],
)
def test_a_private_name_is_recognised(text):
    assert PRIVATE.search(text)


def test_pages_use_public_names_only():
    found = {str(path.relative_to(ROOT)): PRIVATE.findall(code(path)) for path in pages()}
    found.pop("book/house.md", None)  # tells contributors where things lie
    assert {page: names for page, names in found.items() if names} == {}


def test_public_names_are_few():
    assert len(public_names.public()) <= public_names.MOST


def test_every_public_name_is_used_on_a_page_in_an_exercise_or_in_a_claim():
    assert public_names.unused() == [], "python -m tools public-names"


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("x = ck.circuits.full_ov(model, 0)", "circuitkit.circuits.full_ov", True),
        ("from circuitkit.circuits import a, full_ov", "circuitkit.circuits.full_ov", True),
        ("The table of `full_ov` has rows.", "circuitkit.circuits.full_ov", True),
        ("x = ck.circuits.full_over(model)", "circuitkit.circuits.full_ov", False),
        ("what a survey is", "circuitkit.induction.survey", False),
    ],
)
def test_what_counts_as_used(text, name, found):
    assert bool(public_names.used(name, {"page": text})) is found


def test_records_are_found_behind_the_functions_that_return_them():
    records = public_names.records()
    assert "Copying" in [kind.__name__ for kind in records["circuitkit.circuits"]]
    public = {id(thing) for thing in public_names.public().values()}
    assert not [kind for kinds in records.values() for kind in kinds if id(kind) in public]
