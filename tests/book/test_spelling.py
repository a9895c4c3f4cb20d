"""The spelling of the Markdown cells; `make lint` runs codespell on all other files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.notebooks.execute import notebooks

ROOT = Path(__file__).resolve().parents[2]


def misspelled(texts: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """What codespell finds in each of the texts: one line for each word."""
    for number, text in enumerate(texts.values()):
        folder.joinpath(f"{number}.md").write_text(text, "utf-8")
    command = [sys.executable, "-m", "codespell_lib", "-D-", "-D.codespell/dictionary.txt"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    begins = {name: f"{folder / str(number)}.md:" for number, name in enumerate(texts)}
    return {
        name: [line.removeprefix(begin) for line in lines if line.startswith(begin)]
        for name, begin in begins.items()
    }


def markdown(path: Path) -> str:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The words of all pages; codespell reads its dictionaries once."""
    texts = {name(path): markdown(path) for path in notebooks()}
    return misspelled(texts, tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("notebook", [name(path) for path in notebooks()])
def test_words_of_the_page_are_spelled_right(found, notebook):
    assert found[notebook] == []


def test_a_typo_and_an_old_word_are_found_on_their_page(tmp_path):
    found = misspelled({"right": "the heads", "wrong": "teh heads\nof a stranger"}, tmp_path)
    assert found["right"] == []
    assert [line.split(": ")[1].split(" ==>")[0] for line in found["wrong"]] == ["teh", "stranger"]
