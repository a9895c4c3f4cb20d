"""The README's examples run and print what their comments say; its picture and its links are there."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("code", EXAMPLES, ids=["shipped model", "own model"])
def test_each_example_prints_what_it_says(code):
    if not (ROOT / "src/circuitkit/models/data/two-layer.safetensors").exists():
        pytest.skip(
            "the two-layer model is not in the package yet; this test runs as soon as it is"
        )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    promised = [line.split("#")[1] for line in code.splitlines() if line.startswith("print(")]
    assert printed.getvalue().splitlines() == [text.split(":")[0].strip() for text in promised]


@pytest.mark.parametrize("code", EXAMPLES, ids=["shipped model", "own model"])
def test_each_example_is_about_ten_lines(code):
    assert len(code.strip().splitlines()) <= 12


def test_the_packages_to_bring_are_those_that_the_library_depends_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {
        re.match(r"[\w-]+", one)[0]: re.search(r">=([\d.]+)", one)[1]
        for one in project["dependencies"]
    }
    (told,) = re.findall(r"`--no-deps` none is touched; then bring\s+(.*?)\.\n", README, re.S)
    told = told.replace(" (below 5)", "").replace(" and ", ", ").replace("\n", " ")
    named = dict((one.split() + [None])[:2] for one in told.split(", "))
    assert named.keys() == bounds.keys()
    assert {name: bound for name, bound in named.items() if bound} == {
        k: bounds[k] for k in ("torch", "transformer-lens")
    }


def test_links_and_pictures_exist():
    targets = re.findall(r"\]\(([^)#]+)", README)
    assert [
        target for target in targets if "://" not in target and not (ROOT / target).exists()
    ] == []
    assert re.search(r"!\[\S+ .{30,}\]\(", README)


def test_contributing_fits_a_screen():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 40
