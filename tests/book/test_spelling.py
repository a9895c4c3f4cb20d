"""The spelling of the Markdown cells; `make lint` runs codespell on all other files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.notebooks.execute import notebooks

ROOT = Path(__file__).resolve().parents[2]


def misspelled(text: str, *dictionaries: str) -> str:
    """What codespell finds: one line for each word, empty if there is nothing."""
    command = [sys.executable, "-m", "codespell_lib", *dictionaries, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)
    return done.stdout


def markdown(path: Path) -> str:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_words_of_the_page_are_spelled_right(path):
    assert misspelled(markdown(path), "-D-", "-D.codespell/dictionary.txt") == ""


def test_a_typo_and_an_old_word_are_found():
    found = misspelled("teh heads\nof a stranger", "-D-", "-D.codespell/dictionary.txt")
    assert "teh ==> the" in found
    assert "stranger ==> reader" in found
