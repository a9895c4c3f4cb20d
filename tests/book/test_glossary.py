"""Every glossary entry has a meaning, is explained once, and is used by the book."""

import re
import sys

from tools.check.numbers_in_prose import ROOT, cells_of, pages

sys.path.insert(0, str(ROOT / "book/_ext"))
from book_extension.glossary import as_said, pattern

PAGE = "\n\n".join("".join(cell["source"]) for cell in cells_of(ROOT / "book/notation.ipynb"))
ENTRIES = PAGE.split(":::{glossary}\n")[1].split(":::")[0].strip("\n").split("\n\n")


def terms(entry: str) -> list[str]:
    """The term of an entry and its other names: the lines that are not indented."""
    return [line for line in entry.split("\n") if not line.startswith(" ")]


def test_every_term_has_a_meaning():
    assert [entry for entry in ENTRIES if not re.search(r"^  +\S", entry, re.M)] == []


def test_every_term_is_used_by_the_book():
    texts = [
        "".join(cell["source"])
        for name, path in pages().items()
        if name != "book/notation.ipynb"
        for cell in cells_of(path)
        if cell["cell_type"] == "markdown"
    ]
    text = "\n".join(texts)
    assert [terms(entry)[0] for entry in ENTRIES if not pattern(terms(entry)).search(text)] == []


def test_terms_are_found_as_whole_words_only():
    search = pattern(["head", "attention head", "skip trigram", "neuron-head"])
    text = "Attention\nheads, ahead, headings, two_head and a neuron-head of skip trigrams"
    found = [as_said(hit[1]) for hit in search.finditer(text)]
    assert found == ["attention head", "neuron-head", "skip trigram"]
