"""The README's example runs and prints what its comments say; its picture and its links are there."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_example_prints_what_it_says():
    if not (ROOT / "src/circuitkit/models/data/two-layer.safetensors").exists():
        pytest.skip("the two-layer model is not in the package yet; this test runs as soon as it is")
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    promised = [line.split("#")[1] for line in code.splitlines() if line.startswith("print(")]
    assert printed.getvalue().splitlines() == [text.split(":")[0].strip() for text in promised]


def test_the_example_is_about_ten_lines():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(code.strip().splitlines()) <= 12


def test_links_and_pictures_exist():
    targets = re.findall(r"\]\(([^)#]+)", README)
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
    assert re.search(r"!\[\S+ .{30,}\]\(", README)


def test_contributing_fits_a_screen():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 40
