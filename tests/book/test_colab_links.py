"""The table of chapters on the home page links to Colab, but only where the book has an address."""

import sys

from tools.publish.home import ROOT, Home

sys.path.insert(0, str(ROOT / "book/_ext"))
from book_extension.colab_links import with_colab

HOME_PAGE = (ROOT / "book/intro.md").read_text("utf-8")
PLACEHOLDER = Home("https://circuitkit.invalid/circuitkit-book", "main")
PUBLIC = Home("https://github.com/someone/circuitkit-book", "main")
START = "https://colab.research.google.com/github/someone/circuitkit-book/blob/main"


def test_marked_links_open_on_colab_and_exercises_without_their_solutions():
    page, exercises = "[A](1-a/page.ipynb)", "[E](1-a/exercises.ipynb)"
    text = with_colab(f"{page}<!-- colab --> {page} {exercises}<!-- colab -->", PUBLIC.colab)
    expected = f"{page} ([Colab]({START}/book/1-a/page.ipynb)) {page} "
    assert text == expected + f"{exercises} ([Colab]({START}/exercises/1-a.ipynb))"


def test_home_page_has_no_link_to_colab_while_the_address_is_a_placeholder():
    assert "Colab" not in with_colab(HOME_PAGE, PLACEHOLDER.colab)
