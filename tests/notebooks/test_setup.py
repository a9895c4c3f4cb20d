"""Every notebook begins with the same setup cell, made from the one setting that says where the book lives."""

import nbformat
import pytest
from execute_notebooks import notebooks
from setup_cell import TAG, setup_source


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.name)
def test_the_first_code_cell_is_the_setup_cell(path):
    first = next(cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert first.source == setup_source(), f"run scripts/setup_cell.py; {path.name} has another setup cell"
    assert TAG in first.metadata["tags"]
    assert first.outputs == []


def test_the_address_and_branch_come_from_the_configuration(tmp_path):
    (tmp_path / "_config.yml").write_text("title: x\nrepository:\n  url: https://example.org/a/b\n  branch: v2\n")
    assert 'git+https://example.org/a/b@v2"' in setup_source(tmp_path)
    assert "%pip install -q" in setup_source(tmp_path)
    assert "torch" not in setup_source(tmp_path)


def test_a_configuration_without_an_address_is_refused(tmp_path):
    (tmp_path / "_config.yml").write_text("title: x\n")
    with pytest.raises(ValueError, match="no repository.url"):
        setup_source(tmp_path)
