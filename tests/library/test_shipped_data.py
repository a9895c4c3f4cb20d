"""The shipped data files are those of the manifests, and the library refuses a changed file."""

import hashlib
import json
import shutil

import pytest

from circuitkit import data
from tools.check import manifest


@pytest.mark.parametrize("package", manifest.PACKAGES)
def test_the_manifest_has_the_hash_of_every_shipped_file(package):
    assert manifest.stored(package) == manifest.measured(package)


@pytest.mark.parametrize("package", manifest.PACKAGES)
def test_the_script_that_made_a_shipped_file_exists(package):
    for entry in manifest.stored(package).values():
        for script in entry["script"].split(", "):
            assert (manifest.ROOT / script.split()[0]).is_file(), script


@pytest.mark.parametrize("package", manifest.PACKAGES)
def test_a_changed_file_is_refused(package, tmp_path, monkeypatch):
    shutil.copytree(manifest.folder(package), tmp_path / package)
    monkeypatch.setattr(data, "DATA", tmp_path)
    for name in manifest.stored(package):
        data.stored(package, name)
        with (tmp_path / package / name).open("ab") as file:
            file.write(b"\n")
        with pytest.raises(
            ValueError, match=rf"{name} is damaged: its sha256 is \w+, and manifest"
        ):
            data.stored(package, name)


def test_a_table_is_read_with_its_numbers(tmp_path, monkeypatch):
    text = "name,steps,loss\nmine,12,1e-3\n"
    entry = {"sha256": hashlib.sha256(text.encode()).hexdigest()}
    (tmp_path / "manifest.json").write_text(json.dumps({"runs.csv": entry}))
    (tmp_path / "runs.csv").write_text(text)
    monkeypatch.setattr(data, "DATA", tmp_path.parent)
    assert data.stored(tmp_path.name, "runs.csv") == [{"name": "mine", "steps": 12, "loss": 0.001}]
    with pytest.raises(ValueError, match=r"no stored file 'mine'. There are \['runs.csv'\]"):
        data.stored(tmp_path.name, "mine")
