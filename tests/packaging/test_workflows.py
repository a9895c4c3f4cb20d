"""The workflows run targets, tests and markers that exist, and every weekly target is run by a workflow."""

import ast
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
SOURCES = [*WORKFLOWS, ROOT / "Makefile", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
TARGET = re.compile(r"\bmake ([a-z]+(?:-[a-z]+)*)\b|target: ([a-z]+(?:-[a-z]+)*)")
TEST = re.compile(r"(?<![\w/.-])(?<!addprefix )tests/[\w./-]*\w(?:::\w+)*")
OPTION_M = re.compile(r"\s-m[= ](?:\"([^\"]+)\"|(\w+))")  # of pytest: markers; of Python: a module
LOGIC = {"not", "and", "or"}


def code(path: Path) -> str:
    """A file without its comments, where words such as "make sure" may stand; of a page, what is in code marks."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.S))
    return re.sub(r"(?<!\S)#.*$", "", text, flags=re.M)


def targets() -> set[str]:
    return set(re.findall(r"^([a-z -]+):(?!=)", ROOT.joinpath("Makefile").read_text(), re.M))


def missing_test(name: str) -> bool:
    """Whether a path below tests, or the function after `::`, does not exist."""
    path, *functions = name.split("::")
    if not (ROOT / path).exists():
        return True
    if not functions:
        return False
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return functions[0] not in defined


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_named_tests_targets_and_markers_exist(path):
    text = code(path)
    known = {name for line in targets() for name in line.split()}
    named = {a or b for a, b in TARGET.findall(text)}
    assert named - known - {"sure"} == set(), "no such target of the Makefile"
    assert [name for name in TEST.findall(text) if missing_test(name)] == []
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = {line.split(":")[0] for line in declared["markers"]}
    words = {
        word for found in OPTION_M.findall(text) for word in re.findall(r"\w+", "".join(found))
    }
    assert [word for word in words - markers - LOGIC if not find_spec(word)] == []


def test_every_weekly_target_is_run_by_the_weekly_workflow():
    weekly = {name for line in targets() for name in line.split() if name.startswith("weekly-")}
    run = {a or b for a, b in TARGET.findall(code(ROOT / ".github/workflows/weekly.yml"))}
    assert weekly == run


def test_a_test_that_was_renamed_is_noticed():
    here = "tests/packaging/test_workflows.py"
    assert not missing_test(f"{here}::test_a_test_that_was_renamed_is_noticed")
    assert missing_test(f"{here}::test_renamed")
    assert missing_test("tests/library/report/test_report.py")
