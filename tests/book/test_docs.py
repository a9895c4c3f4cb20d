"""What the pages for contributors say: the files that they name exist, and their code runs."""

import re
import tomllib
from pathlib import Path

import pytest

import circuitkit as ck
from tools.check.numbers_in_prose import cells_of, pages

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/testing.md",
    "docs/publish.md",
    "book/install.md",
]
TOP = r"(?:src|book|tests|tools|docs|studies|exercises|benchmarks|\.github)/"


@pytest.mark.parametrize("name", PAGES)
def test_files_named_on_the_page_exist(name):
    text = ROOT.joinpath(name).read_text("utf-8")
    named = set(re.findall(rf"(?<![\w/.]){TOP}[\w./-]*\w", text))
    assert [path for path in sorted(named) if not ROOT.joinpath(path).exists()] == []


def test_files_are_listed_in_the_order_in_which_they_may_import():
    text = ROOT.joinpath("docs/architecture.md").read_text("utf-8")
    rows = text[text.index("| File or package") :].split("\n\n")[0]
    table = re.findall(r"^\| `(\w+)(?:\.py|/)`", rows, re.M)
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())
    (contract,) = [
        one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers"
    ]
    levels = [set(layer.split(" | ")) for layer in reversed(contract["layers"])]
    place = {name: height for height, names in enumerate(levels) for name in names}
    assert set(table) == set(place)
    assert table == sorted(table, key=place.get)


def test_the_code_of_the_architecture_page_runs():
    text = ROOT.joinpath("docs/architecture.md").read_text("utf-8")
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", text, re.S)[1], names)
    run = names["run"]
    parts = sum(run.parts().values())
    assert (parts - run.stream()).abs().max() < 1e-4  # float32, 160 dimensions
    assert len(names["scores"].top(1)) == 1
    cut = names["cut"]
    assert (cut.logits - run.logits).abs().max() > 0.1
    assert isinstance(names["heads"]["L1H3"], ck.Heads)


def uneven_rows(text: str) -> list[str]:
    """The rows of Markdown tables that have more or fewer cells than the first row of their table."""
    tables = re.findall(r"^(?:\|.*\n?)+", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    rows = [re.sub(r"\\\|", "", table).splitlines() for table in tables]
    return [row for table in rows for row in table if row.count("|") != table[0].count("|")]


def test_the_rows_of_a_table_have_equally_many_cells():
    paths = {**pages(), **{name: ROOT / name for name in PAGES if name.endswith(".md")}}
    texts = {
        name: [c["source"] for c in cells_of(path) if c["cell_type"] == "markdown"]
        for name, path in paths.items()
    }
    found = {
        name: [row for source in sources for row in uneven_rows("".join(source))]
        for name, sources in texts.items()
    }
    assert {name: rows for name, rows in found.items() if rows} == {}
    row = "| a row with one cell |"
    assert uneven_rows(f"| A | B |\n|---|---|\n| a | b \\| c |\n{row}\n") == [row]
