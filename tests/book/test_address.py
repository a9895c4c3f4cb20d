"""With an address, the files of the repository name it; without one, none of them does."""

import shutil
from pathlib import Path

import pytest

from tools.publish import address
from tools.publish.home import Home, home

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = Home("https://github.com/Ann/a-book", "v1")
NOWHERE = Home(address.PLACEHOLDER, "main")


def copied(folder: Path) -> Path:
    """The files that name the address."""
    for name in (*address.MARKDOWN, *address.LINES, "_config.yml"):
        folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def written(root: Path, place: Home) -> dict[str, str]:
    for path, text in address.texts(root, place).items():
        path.write_text(text, "utf-8")
    return {
        path.relative_to(root).as_posix(): path.read_text("utf-8")
        for path in address.texts(root, place)
    }


def test_files_agree_with_the_address_in_the_settings():
    for path, text in address.texts(ROOT, home()).items():
        assert path.read_text("utf-8") == text, f"{path.name}: run python -m tools address"


def test_each_file_names_a_public_address_and_forgets_it_again(tmp_path):
    root = copied(tmp_path)
    before = written(root, NOWHERE)
    public = written(root, PUBLIC)
    assert [name for name, text in public.items() if PUBLIC.url not in text] == []
    assert home(root) == PUBLIC
    assert "open the first page in Colab]" in public["README.md"]
    assert "pip install circuitkit-book" in public["README.md"]
    after = written(root, NOWHERE)
    assert after == before
    assert not [name for name, text in after.items() if "github.com/Ann" in text]


@pytest.mark.parametrize(
    "given", ["", "github.com/a/b", "https://example.org/a/b", "https://github.com/a"]
)
def test_an_address_that_is_none_is_refused(given):
    with pytest.raises(SystemExit, match="expected https://github.com/OWNER/NAME"):
        address.read_address(given.split())


def test_the_command_line_names_an_address_and_a_tag():
    read = address.read_address
    assert read(["https://github.com/a/b.git"]) == Home("https://github.com/a/b", "main")
    assert read(["https://github.com/a/b", "v1"]) == Home("https://github.com/a/b", "v1")
    assert read(["none"]) == NOWHERE
