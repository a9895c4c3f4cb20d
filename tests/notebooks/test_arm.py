"""What `make arm` tells, with this Python in place of an emulated one, and what it fetches."""

import platform
import re
import sys

import nbformat
import pytest

from tools.notebooks import arm, processors
from tools.notebooks.execute import execute

LOCK = (arm.ROOT / "requirements.txt").read_text("utf-8")
CELLS = [
    "import platform, torch\ntorch.set_num_threads(1)",
    "print(platform.machine(), torch.__version__)",
    "assert {sum}",
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A page whose second cell shows the machine, and whose third asserts something of it."""
    cells = [
        nbformat.v4.new_code_cell(cell.replace("{sum}", "torch.ones(3).sum() == 3"))
        for cell in CELLS
    ]
    path = tmp_path_factory.mktemp("planted") / "page.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    path.write_text(execute(path))
    return path


def emulated(**environment):
    return lambda _: arm.Emulated([sys.executable], PYTHONPATH=str(arm.ROOT / "src"), **environment)


def told(path, capsys, start):
    status = processors.matrix(
        [processors.Processor("ARM")], [path], processors.Log(None), 1, start
    )
    return status, capsys.readouterr().out


def test_a_page_that_agrees_is_the_same(planted, capsys):
    status, said = told(planted, capsys, emulated())
    assert status == 0
    assert said.startswith("ARM, page.ipynb: same, ")


def test_what_another_machine_shows_is_told_cell_by_cell(planted, tmp_path, capsys):
    """The stored page of an ARM processor, run here: its text and its assert differ."""
    path, here = tmp_path / "page.ipynb", platform.machine()
    path.write_text(
        planted.read_text().replace(f'"{here} ', '"another ').replace("sum() == 3", "sum() == 4")
    )
    status, said = told(path, capsys, emulated())
    assert status == 1
    assert re.search(
        rf"^ARM, page.ipynb: DIFFERS, .*\n  cell 1: output: .*'another .* is now '{here} ",
        said,
        re.M,
    )
    assert "\n  cell 2: AssertionError" in said
    assert "1 notebooks x 1 processors: 1 of 1 runs differ" in said


def test_a_machine_that_does_not_start_is_no_agreement(planted, capsys):
    status, said = told(planted, capsys, lambda _: arm.Emulated(["false"]))
    assert status == 1
    assert "ended with status 1" in said


def test_every_package_that_a_run_imports_is_fetched_with_its_hashes():
    names = arm.required()
    assert {
        "torch",
        "transformer-lens",
        "numpy",
        "ipython",
        "nbval",
        "matplotlib",
        "transformers",
        "pyzmq",
    } <= names
    assert (
        not {"jupyter-book", "playwright", "colorama", "pywin32", "appnope"} & names
    )  # the book's, and other systems'
    lines = arm.locked(names - {"torch"}, LOCK)
    assert set(re.findall(r"^([\w.-]+)==", lines, re.M)) == names - {"torch", "circuitkit-book"}
    assert "torch==" not in lines
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\w)", lines))


def test_missing_programs_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="sudo apt-get install qemu-user-static debootstrap"):
        arm.emulator()
    with pytest.raises(SystemExit, match="sudo apt-get install debootstrap"):
        arm.unpack_debian()


def test_who_is_not_root_and_has_no_sudo_is_told(monkeypatch, tmp_path):
    for name in ("debootstrap", "dpkg"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(arm.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="debootstrap must run as root, and there is no sudo"):
        arm.unpack_debian()


def test_folders_that_are_complete_are_kept_and_others_made_again(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(arm, "BUILD", tmp_path)
    monkeypatch.setattr(arm, "unpack_debian", lambda: made.append("debian"))
    monkeypatch.setattr(arm, "fetch_packages", lambda: made.append("packages"))
    arm.prepare()
    arm.prepare()
    assert made == ["debian", "packages"]
    monkeypatch.setattr(arm, "TORCH", "2.9.0")
    arm.prepare()
    assert made == ["debian", "packages"] * 2
