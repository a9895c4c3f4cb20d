"""What tracked files must not say: a machine's paths, a wrong install command, a word that belittles."""

import re
from pathlib import Path

import pytest

from tools.check import sources

ROOT = Path(__file__).resolve().parents[2]
TEXT = {
    ".md",
    ".py",
    ".toml",
    ".txt",
    ".cfg",
    ".yml",
    ".yaml",
    ".cff",
    ".ipynb",
    ".js",
    ".css",
    ".bib",
    ".json",
    "",
}
THIS = "tests/prose/test_prose.py"

MACHINE = re.compile(
    r"(?<![\w.])/(?:home|Users|work|root|workspace|mnt)/[\w.-]+|(?<![\w.])/tmp/(?!\w*\b(?:x|out)\b)[\w.-]+|[A-Z]:\\Users\\"
)
# Another project owns the bare name on the package index.
INSTALL = re.compile(r"pip3?\s+install\s+(?:-\S+\s+)*[\"']?circuitkit(?![-\w])")
INDEX = re.compile(
    r"--(?:extra-)?index-url|--find-links[ =]+https?:|https?://[\w.-]*(?:pypi|npmjs|artifactory|nexus)[\w.-]*/(?:simple|root|repository)"
)


def tracked() -> list[str]:
    names = [name for name in sources.files() if Path(name).suffix in TEXT and name != THIS]
    return [name for name in names if (ROOT / name).stat().st_size < 3_000_000]


def lines_with(pattern: re.Pattern, names: list[str]) -> list[str]:
    found = []
    for name in names:
        for number, line in enumerate(
            (ROOT / name).read_text("utf-8", errors="replace").splitlines(), 1
        ):
            # Stored pictures are base64, in which any letters can meet.
            if len(line) < 5000 and (hit := pattern.search(line)):
                found.append(f"{name}:{number}: {hit[0]}")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "open('/home/ann/x.csv')",
        "see /Users/bo/book",
        "/work/main/src",
        "/tmp/abc123/file",
        "C:\\Users\\ann",
    ],
)
def test_a_machine_path_is_recognised(text):
    assert MACHINE.search(text)


@pytest.mark.parametrize(
    "text", ["docs/home/page", "https://example.org/home/page", "src/work/x", "~/notes"]
)
def test_other_paths_are_not(text):
    assert not MACHINE.search(text)


@pytest.mark.parametrize(
    "text",
    ["pip install circuitkit", "%pip install -q circuitkit==1", "pip install 'circuitkit[all]'"],
)
def test_the_wrong_install_is_recognised(text):
    assert INSTALL.search(text)


@pytest.mark.parametrize(
    "text",
    [
        'pip install "circuitkit-book @ git+https://x"',
        "pip install -e .",
        "pip install circuitkit_book.whl",
    ],
)
def test_the_right_install_is_not(text):
    assert not INSTALL.search(text)


def test_no_machine_path_is_tracked():
    assert lines_with(MACHINE, tracked()) == []


def test_nothing_says_to_install_the_namesake():
    assert lines_with(INSTALL, tracked()) == []


def test_no_private_package_index_is_named():
    assert lines_with(INDEX, tracked()) == []


def test_the_version_is_the_same_everywhere():
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
