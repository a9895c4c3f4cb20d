"""`python -m tools`: one door, a help line for each, nothing private across rooms."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools.__main__ import commands, main

ROOT = Path(__file__).resolve().parents[2]


def test_every_command_has_a_line_and_can_be_found(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    for name, (place, line) in commands().items():
        assert len(line) > 20, f"{place} needs a first line that says what it does"
        assert f"  {name} " in printed


def test_an_unknown_command_names_the_known_ones(capsys):
    assert main(["no-such"]) == 2
    said = capsys.readouterr().err
    assert "no-such" in said
    assert "execute" in said


@pytest.mark.parametrize("name", ["execute", "mutants", "archive"])
def test_a_command_answers_from_the_root(name):
    done = subprocess.run(
        [sys.executable, "-m", "tools", name, "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"python -m tools {name}" in done.stdout


def test_no_path_tricks_and_no_private_names_of_other_rooms():
    found = []
    for path in (ROOT / "tools").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tools"):
                found += [
                    f"{path}: {node.module}.{a.name}" for a in node.names if a.name.startswith("_")
                ]
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "path"
                and ast.unparse(node) == "sys.path"
            ):
                found.append(f"{path.relative_to(ROOT)}: sys.path")
    # A package that no installer can fetch here is read from its wheel; and the process that forks kernels is started as a
    # file, from any folder, by whoever runs notebooks.
    assert sorted(set(found)) == [
        "tools/notebooks/warm.py: sys.path",
        "tools/study/real_induction.py: sys.path",
    ]
