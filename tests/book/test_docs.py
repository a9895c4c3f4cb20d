"""What the pages for contributors say: the files that they name exist, and their code runs."""

import re
from pathlib import Path

import pytest

import circuitkit as ck

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["CONTRIBUTING.md", "docs/architecture.md", "docs/testing.md"]
TOP = r"(?:src|book|tests|tools|docs|studies|exercises|benchmarks|\.github)/"


@pytest.mark.parametrize("name", PAGES)
def test_files_named_on_the_page_exist(name):
    text = ROOT.joinpath(name).read_text("utf-8")
    named = set(re.findall(rf"(?<![\w/.]){TOP}[\w./-]*\w", text))
    assert named
    assert [path for path in sorted(named) if not ROOT.joinpath(path).exists()] == []


def test_the_code_of_the_architecture_page_runs():
    text = ROOT.joinpath("docs/architecture.md").read_text("utf-8")
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", text, re.S)[1], names)
    run, value = names["run"], names["value"]
    parts = sum(run.part(name) for name in value.parts())
    assert (parts - run.streams[-1]).abs().max() < 1e-4  # float32, 160 dimensions
    assert names["found"].strongest(1)[0][:2] == ("L0H1", "L1H3")
    assert names["whole"].accuracy > 2 * names["cut"].accuracy
    assert isinstance(value["L1H3"], ck.Heads)
