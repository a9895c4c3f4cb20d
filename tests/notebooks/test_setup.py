"""Every notebook begins with the same setup cell. On Colab it installs this library or says why not; elsewhere nothing."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pip
import pytest
from IPython.core.interactiveshell import InteractiveShell

from tools.check.colab import stub
from tools.notebooks.execute import notebooks
from tools.notebooks.gate import cell_faults
from tools.notebooks.setup_cell import BEGINS, locked, setup_source, with_cell
from tools.publish.home import Home, home
from tools.publish.wheel import seal

HERE = Home("https://circuitkit.invalid/x", "main", "9.9", "0" * 64)
PUBLIC = HERE._replace(url="https://github.com/a/b")


def source(here=HERE):
    return setup_source(here, ["transformer-lens==4"])


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.name)
def test_the_first_code_cell_is_the_setup_cell(path):
    first = next(
        cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"
    )
    assert first.source == setup_source(home(), locked()), (
        f"run python -m tools home; {path.name} has another setup cell"
    )
    assert "hide-cell" in first.metadata["tags"]
    assert first.outputs == []


def test_a_wheel_beside_the_page_comes_first_and_the_release_of_this_version_second():
    where = re.search(
        r"where = \((wheel if os.path.exists\(wheel\)\s+else .*)\)\n", source(PUBLIC)
    )[1]
    assert " ".join(where.split()) == (
        'wheel if os.path.exists(wheel) else "https://github.com/a/b/releases/download/v9.9/" + wheel'
    )


def test_a_placeholder_is_never_asked():
    assert "where = wheel\n" in source()
    assert "//" not in source()


def test_the_cell_is_as_short_as_any_other():
    cell = nbformat.v4.new_code_cell(source(PUBLIC), execution_count=1)
    assert cell_faults(cell, 1) == []


def test_the_packages_are_those_of_the_lock(tmp_path):
    (tmp_path / "requirements.txt").write_text(
        "# lock\nwadler_lindig==1\njaxtyping==2\ncircuitsvis==3\ntransformer-lens==4\n"
    )
    assert locked(tmp_path) == [
        "transformer-lens==4",
        "circuitsvis==3",
        "jaxtyping==2",
        "wadler-lindig==1",
    ]
    assert 'add = "a==1 b==2"' in setup_source(HERE, ["a==1", "b==2"])


def test_a_lock_without_a_package_that_colab_lacks_is_refused(tmp_path):
    (tmp_path / "requirements.txt").write_text("jaxtyping==2\n")
    with pytest.raises(
        ValueError,
        match="no line for transformer-lens, circuitsvis, wadler-lindig; run `make lock`",
    ):
        locked(tmp_path)


def test_pip_is_told_to_change_nothing_that_is_there():
    (line,) = re.findall(r"%pip .*", source())
    assert "--no-deps" in line
    assert "upgrade" not in line
    assert not re.search(r"\b(torch|numpy|transformers)\b", line + " ".join(locked()))


def test_anywhere_else_the_cell_prints_nothing(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    InteractiveShell().run_cell(source()).raise_error()
    assert capsys.readouterr().out == ""


def test_a_notebook_without_a_setup_cell_is_refused():
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os")])
    with pytest.raises(
        ValueError, match=f"a: its first code cell does not begin with '?\"?{BEGINS}"
    ):
        with_cell(page, source(), "a")


# --- the cell in a Python of its own, as on Colab ------------------------------------------------------------------


def wheel(folder, name, number, files):
    """The smallest wheel that pip accepts."""
    inside = f"{name}-{number}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{number}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(
            f"{inside}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
        )
        archive.writestr(
            f"{inside}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{inside}/RECORD", "")
    return path


OURS = {"circuitkit/__init__.py": "answer = 42\n", "circuitkit/data.json": "{}"}


class Colab:
    """An environment that has torch, lacks the library, and can ask no network."""

    def __init__(self, folder):
        self.folder, self.page = folder, folder / "page"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        (site,) = (folder / "env" / "lib").glob("python*/site-packages")
        wheel(folder / "index", "transformer_lens", "4", {"transformer_lens.py": ""})
        (site / "pip").symlink_to(Path(pip.__file__).parent)
        (site / "torch-2.6.dist-info").mkdir()
        (site / "torch-2.6.dist-info/METADATA").write_text(
            "Metadata-Version: 2.1\nName: torch\nVersion: 2.6\n"
        )
        self.stubs = stub(folder / "stubs")
        self.page.mkdir()

    def pip(self, *arguments):
        environment = os.environ | {"PIP_NO_INDEX": "1"}
        command = [
            self.folder / "env/bin/python",
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            *arguments,
        ]
        return subprocess.run(command, env=environment, capture_output=True).returncode

    def run(self, here, index=True):
        """The last line that the cell prints, and the last line of its error."""
        cell = re.sub(
            r"%pip (.*)", r"subprocess.run(f'{sys.executable} -m pip \1'.split())", source(here)
        )
        environment = {
            "PYTHONPATH": str(self.stubs),
            "HOME": str(self.folder),
            "PATH": os.environ["PATH"],
            "PIP_NO_INDEX": "1",
        }
        environment |= {"PIP_FIND_LINKS": str(self.folder / "index")} if index else {}
        command = [self.folder / "env/bin/python", "-c", f"import google.colab, subprocess\n{cell}"]
        done = subprocess.run(
            command, cwd=self.page, env=environment, capture_output=True, text=True
        )
        return done.stdout.strip().rpartition("\n")[2], done.stderr.strip().rpartition("\n")[
            2
        ] if done.returncode else ""


@pytest.fixture
def colab(tmp_path):
    return Colab(tmp_path)


@pytest.fixture
def sealed(colab):
    """Settings whose seal is that of the wheel in the folder `release`."""
    made = wheel(colab.folder / "home/releases/download/v9.9", "circuitkit_book", "9.9", OURS)
    colab.release = made
    return HERE._replace(seal=seal(made))


READY = f"python {sys.version.split()[0]} | torch 2.6 | transformer-lens 4 | circuitkit-book 9.9 | ready"


def test_an_uploaded_wheel_is_installed_and_known_and_again(colab, sealed):
    shutil.copy(colab.release, colab.page)
    assert colab.run(sealed) == (READY, "")
    assert colab.run(sealed) == (READY, "")


def test_without_one_the_release_of_this_version_is_taken(colab, sealed):
    assert colab.run(sealed._replace(url=(colab.folder / "home").as_uri())) == (READY, "")


def one_sentence_with_three_causes(error):
    begins = "ImportError: The book's library is not installed, for one of three likely reasons: "
    causes = error.removeprefix(begins)
    return (
        error != causes
        and causes.endswith(".")
        and ". " not in causes
        and len(re.split("; (?:or )?", causes)) == 3
    )


@pytest.mark.parametrize("public", [False, True])
def test_without_any_it_says_in_one_sentence_what_to_do(colab, sealed, public):
    here = sealed._replace(url=(colab.folder / "nowhere").as_uri()) if public else sealed
    said, error = colab.run(here)
    assert "ready" not in said
    assert one_sentence_with_three_causes(error), error
    assert here.wheel in error


def test_without_the_other_packages_too(colab, sealed):
    shutil.copy(colab.release, colab.page)
    assert one_sentence_with_three_causes(colab.run(sealed, index=False)[1])


OTHER = {
    "one byte": ("circuitkit_book", "9.9", {**OURS, "circuitkit/__init__.py": "answer = 43\n"}),
    "a file more": ("circuitkit_book", "9.9", {**OURS, "start.pth": "import os"}),
    "a file less": ("circuitkit_book", "9.9", {"circuitkit/__init__.py": "answer = 42\n"}),
    "a file elsewhere": (
        "circuitkit_book",
        "9.9",
        {"circuitkit/__init__.py": "answer = 42\n", "circuitkit/date.json": "{}"},
    ),
    "another version": ("circuitkit_book", "9.8", OURS),
    "another project": ("circuitkit", "9.9", OURS),
}


@pytest.mark.parametrize("what", OTHER)
def test_what_is_not_this_library_is_refused_before_it_is_imported(colab, sealed, what):
    """As a wheel of that name beside the page, or, where pip would refuse the name, installed before."""
    name, number, files = OTHER[what]
    made = wheel(colab.folder / "other", name, number, files)
    if (name, number) == ("circuitkit_book", "9.9"):
        shutil.copy(made, colab.page)
    else:
        assert colab.pip(made) == 0
    said, error = colab.run(sealed)
    assert "ready" not in said
    assert one_sentence_with_three_causes(error), error
