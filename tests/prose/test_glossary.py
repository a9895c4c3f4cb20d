"""The glossary: in order, used by the book, and found on pages as whole words only."""

import re
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book/_ext"))

from circuitkit_book.glossary import EVERYDAY, as_said, pattern  # noqa: E402

ENTRIES = (ROOT / "book/glossary.md").read_text("utf-8").split(":::{glossary}\n")[1].split(":::")[0]
# What the chapters teach by name; a term that one of them begins to use belongs here and there.
TAUGHT = {
    1: (
        "residual stream",
        "logit attribution",
        "virtual weights",
        "privileged basis",
        "principal angles",
        "layer norm",
    ),
    2: (
        "QK circuit",
        "OV circuit",
        "skip trigram",
        "skip-trigram bug",
        "copying score",
        "virtual head",
        "direct path",
    ),
    3: (
        "induction head",
        "previous-token head",
        "K-composition",
        "composition score",
        "prefix matching",
        "phase change",
    ),
    4: ("neuron-head", "bias token", "Omega", "two-key route", "gated MLP", "activation function"),
    5: (
        "attention-head superposition",
        "OV-incoherent",
        "gated block",
        "strict verdict",
        "negative control",
        "completion",
    ),
}


def groups() -> list[list[str]]:
    """The terms of each entry; all but the first are other names for it."""
    return [
        [line for line in entry.split("\n") if line[:1].strip()]
        for entry in ENTRIES.strip("\n").split("\n\n")
    ]


def words(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text("utf-8")
    return "\n".join(
        cell.source
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "markdown"
    )


def test_the_entries_stand_in_the_order_of_the_alphabet():
    firsts = [re.sub(r"[^a-z0-9 ]", " ", group[0].lower()) for group in groups()]
    assert firsts == sorted(firsts)
    assert len(firsts) >= 80


def test_no_term_is_explained_twice():
    terms = [term.lower() for group in groups() for term in group]
    assert sorted(terms) == sorted(set(terms))


def test_every_entry_has_a_meaning():
    for entry in ENTRIES.strip("\n").split("\n\n"):
        lines = entry.split("\n")
        assert len(" ".join(line for line in lines if line.startswith("  ")).split()) >= 4, lines[0]


@pytest.mark.parametrize("chapter", TAUGHT)
def test_what_a_chapter_teaches_by_name_is_explained(chapter):
    known = {term.lower() for group in groups() for term in group}
    assert [term for term in TAUGHT[chapter] if term.lower() not in known] == []


def test_every_entry_is_used_by_the_book():
    pages = [
        path
        for kind in ("md", "ipynb")
        for path in (ROOT / "book").rglob(f"*.{kind}")
        if "/_" not in str(path)
    ]
    text = "\n".join(words(path) for path in pages if path.name != "glossary.md")
    unused = [group[0] for group in groups() if not pattern(group).search(text)]
    assert unused == []


def test_terms_are_found_as_whole_words_in_either_number_and_over_a_line_break():
    search = pattern(["head", "attention head", "skip trigram", "neuron-head"])

    def found(text: str) -> list[str]:
        return [as_said(hit[1]) for hit in search.finditer(text)]

    assert found("Attention\nheads and a Head") == ["attention head", "head"]
    assert found("a skip-trigram bug, skip trigrams") == ["skip-trigram", "skip trigram"]
    assert found("a neuron-head, ahead, headings, head-first, two_head") == ["neuron-head"]


def test_everyday_words_have_an_entry_and_no_link():
    assert {group[0] for group in groups()} | {
        term for group in groups() for term in group
    } >= EVERYDAY
