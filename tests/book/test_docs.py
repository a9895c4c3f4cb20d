"""What the pages for contributors say: the files that they name exist, and their code runs."""

import re
import tomllib
from pathlib import Path

import pytest

import circuitkit as ck

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
