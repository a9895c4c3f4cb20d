"""The wheel installs without the repository, holds every file of the package, and works from where it was installed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import circuitkit as ck
from tools.publish.archive import build_wheel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_file_as_it_is_and_nothing_else(wheel):
    archive = zipfile.ZipFile(wheel)
    names = {name for name in archive.namelist() if ".dist-info/" not in name}
    folders = [ROOT / "src/circuitkit", ROOT / "src/circuitkit_book"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert names == {name for name in expected if "__pycache__" not in name}
    changed = [name for name in names if archive.read(name) != (ROOT / "src" / name).read_bytes()]
    assert changed == []


def test_no_dependency_has_an_upper_bound_that_would_replace_what_colab_has(wheel):
    """transformer-lens is not on Colab, so its upper bound replaces nothing."""
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    lines = archive.read(metadata).decode().splitlines()
    needs = [line for line in lines if line.startswith("Requires-Dist: ")]
    bounded = [line for line in needs if "<" in line.split(";")[0] or "==" in line.split(";")[0]]
    assert bounded == ["Requires-Dist: transformer-lens<5,>=4.3"]


def test_the_installed_wheel_finds_its_version_and_its_data(wheel, tmp_path):
    target = tmp_path / "target"
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    code = "import circuitkit; from circuitkit import data; from importlib import metadata\n"
    code += "print(circuitkit.__file__, metadata.version('circuitkit-book'))\n"
    code += (
        "print(data.stored_file('models', 'tokenizer.json'))"  # its hash is that of the manifest
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
    )
    folder = target / "circuitkit"
    expected = [f"{folder}/__init__.py {ck.__version__}", f"{folder}/data/models/tokenizer.json"]
    assert done.stdout.splitlines() == expected, done.stderr
