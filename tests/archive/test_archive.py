"""The archive of the book, unpacked and opened over file:// with the network cut."""

import zipfile

import nbformat
import pytest
from browser_tools import HTML, ROOT, pages

from tools.notebooks.setup_cell import locked, setup_source
from tools.publish import archive, wheel
from tools.publish.home import home


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    assert HTML.is_dir(), "the book is not built; run `make book` first"
    return archive.pack(HTML, tmp_path_factory.mktemp("archive") / "book.zip")


@pytest.fixture(scope="module")
def book(packed):
    """The folder that a reader gets; its name has a blank and an accent, as such folders have."""
    folder = packed.parent / "Mes livres é"
    with zipfile.ZipFile(packed) as zipped:
        zipped.extractall(folder)
    return folder / archive.NAME


@pytest.fixture(scope="module")
def context(browser):
    made = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    yield made
    made.close()


def failed(request) -> bool:
    """Whether a file was asked for and not had; a reader who leaves a page ends what it was still loading."""
    return request.failure != "net::ERR_ABORTED"


@pytest.fixture
def opened(context):
    """Open an address in a new page; yields the page and the list of what goes wrong on it."""
    page, wrong = context.new_page(), []
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "requestfailed", lambda request: failed(request) and wrong.append(f"missing: {request.url}")
    )
    page.on(
        "request",
        lambda request: request.url.startswith("http") and wrong.append(f"outside: {request.url}"),
    )

    def visit(address: str):
        page.goto(address, wait_until="load")
        return page, wrong

    yield visit
    page.close()


def test_the_same_book_gives_the_same_bytes(packed, tmp_path):
    again = archive.pack(HTML, tmp_path / "again.zip")
    assert again.read_bytes() == packed.read_bytes()


def test_the_archive_holds_every_page_and_says_how_to_begin(packed):
    with zipfile.ZipFile(packed) as zipped:
        names = set(zipped.namelist())
    assert {
        f"{archive.NAME}/{name}" for name in [*pages(), "index.html", "search.html", "START.txt"]
    } <= names
    assert not [name for name in names if not name.startswith(f"{archive.NAME}/")]


def first_code(path):
    return next(
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"
    )


def test_for_colab_it_holds_the_wheel_and_notebooks_that_know_it(book):
    (made,) = (book / "colab").glob("*.whl")
    assert made.name == home().wheel
    cell = setup_source(home()._replace(seal=wheel.seal(made)), locked())
    chapters = sorted((ROOT / "book").glob("[0-9]*.ipynb"))
    for folder, originals in (
        ("colab", chapters),
        ("colab/exercises", sorted((ROOT / "exercises").glob("*.ipynb"))),
    ):
        copies = sorted((book / folder).glob("*.ipynb"))
        assert [path.name for path in copies] == [path.name for path in originals]
        for copy, original in zip(copies, originals, strict=True):
            old, new = (nbformat.read(path, as_version=4) for path in (original, copy))
            assert first_code(copy) == cell
            next(c for c in old.cells if c.cell_type == "code").source = cell
            assert new == old
    assert {first_code(path) for path in book.rglob("*.ipynb")} == {cell}


def test_it_says_how_to_use_them(book):
    text = (book / "START.txt").read_text("utf-8")
    assert "upload a notebook from the folder colab" in text


@pytest.mark.parametrize("name", [*pages(), "search.html", "genindex.html"])
def test_a_page_opens_from_the_file_system(book, opened, name):
    page, wrong = opened((book / name).as_uri())
    for view in page.locator(".ck-attention").all():
        view.scroll_into_view_if_needed()
    if page.locator(".math").count():
        page.evaluate("MathJax.startup.promise")
        assert page.locator(".math:not(:has(mjx-container))").count() == 0
        assert page.evaluate("document.fonts.load('16px MJXTEX').then(faces => faces.length)")
    page.wait_for_function(
        "[...document.querySelectorAll('.ck-attention')].every(v => v.dataset.live === 'ready')"
    )
    drawn = "document.querySelectorAll('.ck-view canvas').length === document.querySelectorAll('.ck-attention').length"
    page.wait_for_function(drawn)  # the last one is drawn a moment after it is ready
    assert wrong == []


def test_an_attention_view_is_drawn(book, opened):
    page, wrong = opened((book / "book/03-induction-heads.html").as_uri())
    page.locator(".ck-attention").first.scroll_into_view_if_needed()
    canvas = page.locator(".ck-view canvas").first
    canvas.wait_for()
    assert (
        canvas.evaluate(
            "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
        )
        > 2
    )
    assert wrong == []


def test_the_start_page_leads_into_the_book(book, opened):
    page, wrong = opened((book / "index.html").as_uri())
    page.wait_for_url("**/book/intro.html")
    page.locator(".bd-sidebar-primary a", has_text="Induction heads").first.click()
    page.wait_for_url("**/book/03-induction-heads.html")
    page.wait_for_load_state()
    page.locator("a.right-next").click()
    page.wait_for_url("**/book/04-*.html")
    assert wrong == []


def test_a_file_that_is_not_there_is_told(book, opened):
    page, wrong = opened((book / "book/intro.html").as_uri())
    with page.expect_event("requestfailed"):
        page.evaluate("new Image().src = 'nowhere.png'")
    assert any(
        line.startswith("missing: file:") and line.endswith("/nowhere.png") for line in wrong
    )


def test_the_theme_changes_and_stays(book, opened):
    page, wrong = opened((book / "book/intro.html").as_uri())
    theme = "document.documentElement.dataset.theme"
    seen = set()
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").first.click()
        seen.add(page.evaluate(theme))
    while page.evaluate("document.documentElement.dataset.mode") != "dark":
        page.locator("button.theme-switch-button:visible").first.click()
    page.goto((book / "book/glossary.html").as_uri())
    assert seen == {"light", "dark"}
    assert page.evaluate(theme) == "dark"
    assert wrong == []


def test_a_word_is_found_shown_in_its_line_and_its_page_opens(book, opened):
    page, wrong = opened((book / "book/intro.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("incoherent")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=incoherent*")
    page.locator("#search-results p.search-summary", has_text="found").wait_for()
    result = page.locator("#search-results li", has_text="superposition").first
    assert "incoheren" in result.locator("p.context").first.inner_text().lower()
    result.locator("a").first.click()
    page.wait_for_url("**/book/*.html**")
    assert "incoheren" in page.locator("article").inner_text().lower()
    assert wrong == []


def test_a_folder_without_a_book_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="holds no built book. Build it first: make book"):
        archive.pack(tmp_path, tmp_path / "a.zip")
