r"""Displayed equations are numbered `\tag{chapter.number}` in order, and every `[(2.1)](#eq-2-1)` has its equation."""

import re
from pathlib import Path

import nbformat
import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = {path.name: int(path.name[:2]) for path in sorted(BOOK.glob("[0-9][0-9]-*.ipynb"))} | {
    "conventions.ipynb": 0
}
REFERENCE = re.compile(r"\[([^\]]*)\]\(([^)\s]*)#(eq-[^)]*)\)")


def prose(path: Path) -> str:
    """The Markdown of a notebook without code spans and blocks."""
    cells = nbformat.read(path, as_version=4).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)


def tags(text: str) -> list[str | None]:
    """The tag of every displayed formula, `None` where there is none."""
    found = (
        re.search(r"\\tag\{([^}]*)\}", formula)
        for formula in re.findall(r"\$\$(.+?)\$\$", text, re.S)
    )
    return [match and match[1] for match in found]


def wrong_tags(text: str, chapter: int) -> list[str]:
    given = tags(text)
    expected = [f"{chapter}.{number}" for number in range(1, len(given) + 1)]
    return [
        f"formula {i + 1} has {a}, not {b}"
        for i, (a, b) in enumerate(zip(given, expected, strict=True))
        if a != b
    ]


def wrong_references(text: str, name: str, known: dict[str, list]) -> list[str]:
    """References whose equation does not exist, or that say another number than the one they lead to."""
    wrong = []
    for said, page, target in REFERENCE.findall(text):
        number = target.removeprefix("eq-").replace("-", ".")
        if number not in known.get(page.removeprefix("../") or name, []) or said != f"({number})":
            wrong.append(f"[{said}]({page}#{target})")
    return wrong


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_displayed_equation_has_the_next_number(name):
    assert tags(prose(BOOK / name))
    assert wrong_tags(prose(BOOK / name), CHAPTERS[name]) == []


def test_every_reference_leads_to_the_equation_it_names():
    known = {name: tags(prose(BOOK / name)) for name in CHAPTERS}
    pages = {str(path.relative_to(BOOK)): prose(path) for path in BOOK.rglob("*.ipynb")}
    pages |= {str(path.relative_to(BOOK)): path.read_text("utf-8") for path in BOOK.rglob("*.md")}
    assert {
        name: found
        for name, text in pages.items()
        if (found := wrong_references(text, name, known))
    } == {}
    assert sum(len(REFERENCE.findall(text)) for text in pages.values()) >= len(CHAPTERS)


@pytest.mark.parametrize(
    "text",
    [
        r"$$a$$",
        r"$$a \tag{2.2}$$",
        r"$$a \tag{2.1}$$ $$b \tag{2.3}$$",
        r"$$a \tag{2.1}$$ $$b \tag{2.1}$$",
    ],
    ids=["no number", "begins at two", "a gap", "twice the same"],
)
def test_a_wrong_number_is_found(text):
    assert wrong_tags(text, 2)


def test_a_wrong_reference_is_found():
    known = {"a.ipynb": ["1.1"]}
    text = "[(1.1)](#eq-1-1) [(1.2)](#eq-1-2) [(1.2)](#eq-1-1) [(1.1)](b.ipynb#eq-1-1)"
    expected = ["[(1.2)](#eq-1-2)", "[(1.2)](#eq-1-1)", "[(1.1)](b.ipynb#eq-1-1)"]
    assert wrong_references(text, "a.ipynb", known) == expected
