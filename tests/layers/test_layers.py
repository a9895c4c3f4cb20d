"""The order of the rooms is checked by `make lint`, and a step back is noticed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def lint(folder: Path) -> subprocess.CompletedProcess:
    command = [
        str(Path(sys.executable).with_name("lint-imports")),
        "--no-cache",
        "--config",
        str(folder / "pyproject.toml"),
    ]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(folder / "src")}
    )


def test_make_lint_asks_for_the_order():
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    assert "lint-imports" in recipe


def test_the_library_keeps_it():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


def rooms() -> list[str]:
    order = tomllib.loads(PROJECT)["tool"]["importlinter"]["contracts"][0]["layers"]
    return [name for level in order for name in level.split(" | ")]


def test_every_room_has_its_place():
    there = {
        path.stem
        for path in (ROOT / "src/circuitkit").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert there - {"__init__", "__main__"} == {*rooms(), "models", "figures"}


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("residual", "from circuitkit.circuits import full_ov"),
        ("_heads", "from circuitkit.anatomy import read"),
        ("induction", "def f():\n    from circuitkit.superposition import rate"),
        ("figures", "from circuitkit._heads import Heads"),
        ("conversion", "from circuitkit.models import load_model"),
    ],
)
def test_a_step_back_is_noticed(room, line, tmp_path):
    """A tree of the same rooms, empty but for one import."""
    for name in {*rooms(), "models", "figures"}:
        folder = tmp_path / "src/circuitkit" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "_a.py").write_text(f"{line}\n" if name == room else "")
    (tmp_path / "src/circuitkit/__init__.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(re.sub(r"(?m)^ignore_imports = .*$", "", PROJECT))
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"circuitkit.{room}" in done.stdout
