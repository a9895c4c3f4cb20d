"""Weekly: the archive of the book, unpacked and opened without a server or a network."""

import zipfile

import pytest

from tests.support.site import HTML
from tools.publish import archive


@pytest.mark.weekly
def test_archive_opens_from_a_folder_without_a_network(open_page, tmp_path):
    archive.pack(HTML, tmp_path / "book.zip")
    folder = tmp_path / "Mes livres é"
    with zipfile.ZipFile(tmp_path / "book.zip") as packed:
        packed.extractall(folder)
    assert len(list((folder / archive.NAME / "colab").glob("*.whl"))) == 1
    for name in [
        "book/3-induction-heads/induction-in-a-trained-model.html",
        "book/lab.html",
        "book/born-in-your-tab.html",
        "search.html",
    ]:
        opened = open_page((folder / archive.NAME / name).as_uri(), offline=True)
        opened.read()
        assert opened.problems == []
    page = opened.page
    page.keyboard.press("Control+k")
    page.keyboard.type("gated block")
    page.keyboard.press("Enter")
    page.locator("#search-results li a", has_text="uperposition").first.click()
    page.wait_for_url("**/book/**/*.html**")
