"""The address of the book is one setting: every place is made from it, and a placeholder is stated nowhere."""

import importlib.util
import re
import shutil
import tomllib
from types import SimpleNamespace

import nbformat
import pytest
import yaml

from tools.check import sources
from tools.notebooks import setup_cell, stubs
from tools.publish import home as homes
from tools.publish import wheel
from tools.publish.home import ROOT, home, written

spec = importlib.util.spec_from_file_location("buttons", ROOT / "book/_ext/circuitkit_book/home.py")
buttons = importlib.util.module_from_spec(spec)
spec.loader.exec_module(buttons)

COPIED = (
    "_config.yml",
    "pyproject.toml",
    "README.md",
    "CITATION.cff",
    "requirements.txt",
    "LICENSE",
    ".gitignore",
)
ADDRESS = "https://github.com/some-one/a.book"


@pytest.fixture
def elsewhere(tmp_path):
    """The files with an address, a chapter and an exercise."""
    for name in COPIED:
        shutil.copy(ROOT / name, tmp_path)
    for folder, name in (
        ("book", "01-residual-stream.ipynb"),
        ("book/exercises", "01-residual-stream.ipynb"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        shutil.copy(ROOT / folder / name, tmp_path / folder)
    (tmp_path / "src/circuitkit").mkdir(parents=True)
    (tmp_path / "src/circuitkit/__init__.py").write_text("")
    return tmp_path


def move(root, address):
    path = root / "_config.yml"
    path.write_text(path.read_text().replace(home(root).url, address))


def texts(root):
    names = ("README.md", "CITATION.cff", "pyproject.toml", "book/01-residual-stream.ipynb")
    names += ("book/exercises/01-residual-stream.ipynb", "exercises/01-residual-stream.ipynb")
    return {name: (root / name).read_text("utf-8") for name in names}


def test_every_place_is_as_the_setting_makes_it():
    stale = [path.name for path, text in written().items() if path.read_text("utf-8") != text]
    assert stale == [], "run python -m tools home"


def test_nothing_else_states_an_address_of_the_book():
    """Neither the placeholder nor a repository of that name, in any file that git knows."""
    stated = re.compile(rb"github\.com/[\w-]+/circuitkit(-book)?\b|circuitkit\.invalid")
    found = {name for name in sources.files() if stated.search((ROOT / name).read_bytes())}
    mine = {
        "_config.yml",
        "tests/home/test_home.py",
        "tests/notebooks/test_setup.py",
        "tests/colab/test_check.py",
    }
    assert found <= mine if not home().public else True


def test_one_command_rewrites_every_place_and_back(elsewhere):
    homes.main([], elsewhere)
    before = texts(elsewhere)
    placeholder = home(elsewhere).url
    move(elsewhere, ADDRESS)
    homes.main([], elsewhere)
    after = texts(elsewhere)
    assert not [name for name, text in before.items() if ADDRESS in text]
    assert [name for name, text in after.items() if "some-one/a.book" not in text] == []
    assert (
        "[chapter 1](https://colab.research.google.com/github/some-one/a.book/blob/main/book/01-residual-stream.ipynb)"
        in after["README.md"]
    )
    assert "no public address" not in after["README.md"]
    assert f"  url    = {{{ADDRESS}}}" in after["README.md"]
    assert yaml.safe_load(after["CITATION.cff"])["repository-code"] == ADDRESS
    assert tomllib.loads(after["pyproject.toml"])["project"]["urls"] == {"Repository": ADDRESS}
    assert (
        "/blob/main/exercises/01-residual-stream.ipynb"
        in after["book/exercises/01-residual-stream.ipynb"]
    )
    move(elsewhere, placeholder)
    homes.main([], elsewhere)
    assert texts(elsewhere) == before


def test_a_placeholder_leaves_no_link():
    if home().public:
        return
    readme = (ROOT / "README.md").read_text("utf-8")
    assert (
        "*The book has no public address yet*: `repository.url` in `_config.yml` is a placeholder"
        in readme
    )
    assert "colab.research.google.com" not in readme
    assert "repository-code" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_a_release_is_refused_while_the_address_is_a_placeholder(elsewhere, capsys):
    homes.main([], elsewhere)
    move(elsewhere, "https://whatever.invalid/book")
    before = texts(elsewhere), (elsewhere / "_config.yml").read_text()
    assert homes.main(["--release"], elsewhere) == 1
    assert (
        "is a placeholder, https://whatever.invalid/book. A release needs the book's real home"
        in capsys.readouterr().out
    )
    assert (texts(elsewhere), (elsewhere / "_config.yml").read_text()) == before


def test_a_release_pins_the_tag_and_the_seal_of_the_sources(elsewhere, tmp_path_factory):
    move(elsewhere, ADDRESS)
    (elsewhere / "src/circuitkit/__init__.py").write_text("answer = 42\n")
    assert homes.main(["--release"], elsewhere) == 0
    here = home(elsewhere)
    assert here.branch == here.tag == f"v{here.version}"
    built = wheel.build(tmp_path_factory.mktemp("wheel"), elsewhere)
    assert here.seal == wheel.seal(built)
    assert built.name == here.wheel
    cell = setup_cell.setup_source(here, setup_cell.locked(elsewhere))
    for path in ("book/01-residual-stream.ipynb", "exercises/01-residual-stream.ipynb"):
        page = nbformat.read(elsewhere / path, as_version=4)
        assert next(cell.source for cell in page.cells if cell.cell_type == "code") == cell
    assert f"{ADDRESS}/releases/download/{here.tag}/" in cell
    assert f"/blob/{here.tag}/book/" in (elsewhere / "README.md").read_text()


def test_links_open_main_or_the_tag_of_this_version_whose_sources_are_sealed(tmp_path):
    here = home()
    assert here.branch in ("main", here.tag)
    if here.branch == here.tag:
        assert here.seal == wheel.seal(wheel.build(tmp_path))


@pytest.mark.parametrize(
    "address", ["http://github.com/a/b", "https://gitlab.com/a/b", "https://github.com/a"]
)
def test_an_address_that_colab_cannot_open_is_refused(elsewhere, address):
    move(elsewhere, address)
    with pytest.raises(
        ValueError, match="expected https://github.com/owner/name, which Colab can open"
    ):
        home(elsewhere)


def test_a_configuration_without_an_address_is_refused(tmp_path):
    (tmp_path / "_config.yml").write_text("title: x\n")
    with pytest.raises(ValueError, match="no `repository:`"):
        home(tmp_path)


def test_a_readme_without_its_marks_is_refused():
    with pytest.raises(ValueError, match="0 places between <!-- colab -->"):
        homes.readme("# title\n", home(), [])


@pytest.mark.parametrize(
    ("address", "left"), [("https://a.invalid/b", {"path_to_docs"}), (ADDRESS, None)]
)
def test_buttons_that_need_an_address_are_there_only_with_one(address, left):
    options = {name: True for name in buttons.NEED_AN_ADDRESS} | {
        "repository_url": address,
        "path_to_docs": "book",
    }
    before = set(options)
    buttons.hide_buttons(None, SimpleNamespace(html_theme_options=options))
    assert set(options) == (before if left is None else left)


def test_the_line_of_an_exercise_has_a_link_to_colab_only_with_a_home(elsewhere):
    assert "Colab" not in stubs.copy_line("01-x.ipynb", elsewhere)
    move(elsewhere, ADDRESS)
    assert "github/some-one/a.book/blob/main/exercises/01-x.ipynb" in stubs.copy_line(
        "01-x.ipynb", elsewhere
    )
