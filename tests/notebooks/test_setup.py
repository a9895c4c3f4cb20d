"""Every notebook begins with the same setup cell; it and the Colab links come from the setting that says where the book is."""

import re
import shutil
import sys
import types
from importlib.metadata import version

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from tools.notebooks import setup_cell
from tools.notebooks.execute import notebooks
from tools.notebooks.setup_cell import ROOT, TAG, colab_links, locked, repository, setup_source, version_tag

README = (ROOT / "README.md").read_text("utf-8")


@pytest.fixture
def elsewhere(tmp_path):
    """A repository with another address and another lock."""
    (tmp_path / "_config.yml").write_text("title: x\nrepository:\n  url: https://github.com/a/b\n  branch: v2\n")
    (tmp_path / "requirements.txt").write_text(
        "# lock\nwadler_lindig==1\njaxtyping==2\ncircuitsvis==3\ntransformer-lens==4\n"
    )
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "03-x.ipynb").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.name)
def test_the_first_code_cell_is_the_setup_cell(path):
    first = next(cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert first.source == setup_source(), f"run tools/notebooks/setup_cell.py; {path.name} has another setup cell"
    assert TAG in first.metadata["tags"]
    assert first.outputs == []


def test_address_version_and_packages_come_from_the_configuration_and_the_lock(elsewhere):
    source = setup_source(elsewhere)
    assert "git+https://github.com/a/b@v2 {add}" in source
    assert 'add = "transformer-lens==4 circuitsvis==3 jaxtyping==2 wadler-lindig==1"' in source
    link = "https://colab.research.google.com/github/a/b/blob/v2/book/03-x.ipynb"
    assert colab_links(elsewhere) == f"[chapter 3]({link})"


def test_the_readme_has_the_links():
    assert f"<!-- colab -->\n{colab_links()}\n<!-- /colab -->" in README, "run tools/notebooks/setup_cell.py"


def test_readers_get_main_or_the_tag_of_this_version():
    assert repository()[1] in ("main", version_tag())


def test_a_release_sets_the_tag_everywhere(elsewhere, monkeypatch):
    shutil.copy(ROOT / "pyproject.toml", elsewhere)
    (elsewhere / "README.md").write_text("<!-- colab -->\n\n<!-- /colab -->\n")
    (elsewhere / "book" / "03-x.ipynb").unlink()
    shutil.copy(notebooks()[0], elsewhere / "book" / "01-y.ipynb")
    monkeypatch.setattr(setup_cell, "ROOT", elsewhere)
    monkeypatch.setattr(sys, "argv", ["setup_cell.py", "--release"])
    for function in (setup_cell.repository, setup_cell.setup_source, setup_cell.colab_links, setup_cell.locked):
        monkeypatch.setattr(function, "__defaults__", (elsewhere,))
    monkeypatch.setattr(setup_cell.version_tag, "__defaults__", (elsewhere,))
    assert setup_cell.main() == 0
    tag = version_tag()
    assert f"\n  branch: {tag}\n" in (elsewhere / "_config.yml").read_text()
    assert f"a/b@{tag} " in (elsewhere / "book" / "01-y.ipynb").read_text()
    assert f"/blob/{tag}/book/01-y.ipynb" in (elsewhere / "README.md").read_text()


def test_pip_is_told_to_change_nothing_that_is_there():
    (line,) = re.findall(r"%pip .*", setup_source())
    assert "--no-deps" in line
    assert "upgrade" not in line
    assert not re.search(r"\b(torch|numpy|transformers)\b", line + " ".join(locked()))


def test_anywhere_else_the_cell_prints_nothing(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    shell = InteractiveShell()
    shell.run_cell(setup_source()).raise_error()
    assert capsys.readouterr().out == ""


def test_on_colab_the_cell_prints_versions_and_ready(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    shell = InteractiveShell()
    shell.run_cell(setup_source()).raise_error()
    versions, ready = capsys.readouterr().out.splitlines()
    for name in ("torch", "transformer-lens", "circuitkit-book"):
        assert f"{name} {version(name)}" in versions
    assert versions.startswith(f"python {sys.version.split()[0]}")
    assert ready == "ready"


def test_a_configuration_without_an_address_is_refused(tmp_path):
    (tmp_path / "_config.yml").write_text("title: x\n")
    with pytest.raises(ValueError, match="no `repository:`"):
        setup_source(tmp_path)


def test_a_lock_without_a_package_that_colab_lacks_is_refused(elsewhere):
    (elsewhere / "requirements.txt").write_text("jaxtyping==2\n")
    with pytest.raises(ValueError, match="no line for transformer-lens, circuitsvis, wadler-lindig; run `make lock`"):
        setup_source(elsewhere)
