"""The project's files are the same with git and without."""

import shutil

import pytest

from tools.check import sources


def test_a_download_without_git_has_the_files_that_git_lists(tmp_path):
    listed = sources.files()
    if not (sources.ROOT / ".git").exists():
        pytest.skip("this is such a download; run the test in a clone")
    assert {
        "README.md",
        "src/circuitkit/models/data/manifest.json",
        "book/intro.md",
        ".ci/run",
    } <= set(listed)
    assert sorted(sources.walked(sources.ROOT)) == listed


def test_what_is_ignored_is_not_walked(tmp_path):
    shutil.copy(sources.ROOT / ".gitignore", tmp_path)
    for name in (
        "a.py",
        "b/data/c.txt",
        "data/d.txt",
        "_build/e",
        ".venv-old/f",
        "x.egg-info/g",
        ".git/h",
        "b/__pycache__/i",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sources.files(root=tmp_path) == [".gitignore", "a.py", "b/data/c.txt"]
    assert sources.files("b", root=tmp_path) == ["b/data/c.txt"]
    assert sources.files("a.py", root=tmp_path) == ["a.py"]
