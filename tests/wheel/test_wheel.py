"""The wheel: it builds, carries its data, and works from a folder that knows nothing of the repository."""

import ast
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.notebooks.setup_cell import setup_source
from tools.publish import wheel as wheels
from tools.publish.home import home

ROOT = Path(__file__).resolve().parents[2]


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheels.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        target,
        wheel,
    )
    return target


def test_the_wheel_has_the_distribution_name(wheel):
    assert wheel.name.startswith("circuitkit_book-")


def test_the_same_sources_give_the_same_bytes(wheel, tmp_path):
    assert wheels.build(tmp_path).read_bytes() == wheel.read_bytes()


def test_the_seal_is_what_the_setup_cell_computes_from_an_installed_wheel(wheel, installed):
    tree = ast.parse(
        setup_source(home()._replace(seal=wheels.seal(wheel)), []).replace("%pip", "pass  #")
    )
    named = {
        node.targets[0].id: ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
    }
    steps = "\n".join(named[name] for name in ("files", "found", "seal"))
    code = f"import hashlib\nfrom importlib.metadata import distributions\n{steps}\nprint(len(found), seal)"
    output = run(sys.executable, "-S", "-c", code, env={"PYTHONPATH": str(installed)})
    assert output.split() == [str(len(list(files_of(wheel)))), wheels.seal(wheel)]


def files_of(wheel):
    return (name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name)


def test_every_file_of_the_package_is_inside(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src"
    wanted = {
        str(path.relative_to(package))
        for path in (package / "circuitkit").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert sorted(wanted - inside) == []


def test_nothing_else_is_inside(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert [
        name for name in names if not name.startswith(("circuitkit/", "circuitkit_book-"))
    ] == []
    assert [name for name in names if "__pycache__" in name or "/test" in name] == []


def test_the_wheel_is_small_enough_to_fetch(wheel):
    assert wheel.stat().st_size < 30e6


def test_the_metadata_has_ranges_only(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    needs = [
        line
        for line in archive.read(name).decode().splitlines()
        if line.startswith("Requires-Dist")
    ]
    assert needs
    assert not [line for line in needs if "==" in line]
    assert [line for line in needs if "<" in line] == ["Requires-Dist: transformer-lens<5,>=4.3"]


def test_it_works_from_there(installed, tmp_path):
    """Imported from the target folder, in an empty folder, with every public package that the source has."""
    code = (
        "import json, pkgutil, circuitkit, circuitkit.figures as f\n"
        "view = f.attention(['a', 'b'], [[1, 0], [1, 0]], alt='Both look at the first token')\n"
        "names = [m.name for m in pkgutil.iter_modules(circuitkit.__path__)]\n"
        "print(json.dumps([circuitkit.__file__, names, '<figure' in view._repr_html_()]))"
    )
    # -S -E would hide torch as well; PYTHONPATH comes before the editable install.
    output = run(
        sys.executable, "-c", code, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)}
    )
    place, names, drawn = json.loads(output)
    assert Path(place).is_relative_to(installed)
    assert drawn
    assert {
        path.name for path in (ROOT / "src/circuitkit").iterdir() if (path / "__init__.py").exists()
    } <= set(names)


def test_a_shipped_model_loads_from_there(installed, tmp_path):
    code = (
        "import circuitkit\n"
        "model = circuitkit.load_model('two-layer')\n"
        "print(circuitkit.__file__, tuple(model('The cat sat on the mat').shape[:1]))"
    )
    output = run(
        sys.executable,
        "-W",
        "ignore",
        "-c",
        code,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )
    assert output.startswith(str(installed))
    assert output.strip().endswith("(1,)")
