"""No file names a path of one machine, installs another project's package, or names a private package index."""

import re
import subprocess
import tomllib

import pytest

from tools.check.numbers_in_prose import ROOT

THIS = "tests/book/test_names_and_paths.py"
FORBIDDEN = {
    "path of one machine": re.compile(
        r"(?<![\w.])/(?:home|Users|work|root|workspace|mnt|tmp)/(?!x\b|out\b)[\w.-]+|[A-Z]:\\Users\\"
    ),
    "name of another project": re.compile(
        r"pip3?\s+install\s+(?:-\S+\s+)*[\"']?circuitkit(?![-\w])"
    ),
    "package index": re.compile(
        r"--(?:extra-)?index-url|--find-links[ =]+https?:|https?://[\w.-]*(?:pypi|npmjs)[\w.-]*/simple"
    ),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_tracked_file_has_a(kind):
    command = [
        "git",
        "grep",
        "-nIE",
        r"/(home|Users|work|root|workspace|mnt|tmp)/|Users|pip|index|find-links",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    if listed.returncode > 1:
        pytest.skip("this copy of the project has no git history")
    lines = [line for line in listed.stdout.splitlines() if len(line) < 5000]
    assert len(lines) > 10
    assert [x for x in lines if FORBIDDEN[kind].search(x) and not x.startswith(THIS)] == []


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
