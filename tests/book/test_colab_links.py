"""The table of chapters on the home page links to Colab, but only where the book has an address."""

import sys

from tools.publish.home import ROOT, Home

sys.path.insert(0, str(ROOT / "book/_ext"))
from book_extension.colab_links import with_colab

HOME_PAGE = (ROOT / "book/intro.md").read_text("utf-8")
PLACEHOLDER = Home("https://circuitkit.invalid/circuitkit-book", "main")
PUBLIC = Home("https://github.com/someone/circuitkit-book", "main")


def test_marked_links_get_an_address_of_colab():
    text = with_colab("[A](1-a/page.ipynb)<!-- colab --> [B](1-a/other.ipynb)", PUBLIC.colab)
    start = "https://colab.research.google.com/github/someone/circuitkit-book/blob/main"
    assert (
        text == f"[A](1-a/page.ipynb) ([Colab]({start}/book/1-a/page.ipynb)) [B](1-a/other.ipynb)"
    )


def test_exercises_open_without_their_solutions():
    text = with_colab("[E](1-a/exercises.ipynb)<!-- colab -->", PUBLIC.colab)
    assert text.endswith("/blob/main/exercises/1-a.ipynb))")


def test_home_page_has_no_link_to_colab_while_the_address_is_a_placeholder():
    assert "Colab" not in with_colab(HOME_PAGE, PLACEHOLDER.colab)
    assert with_colab(HOME_PAGE, PUBLIC.colab).count("([Colab](") == HOME_PAGE.count(
        "<!-- colab -->"
    )
