"""Links to Colab on the home page: `[title](page.ipynb)<!-- colab -->` gets one where the book has an address."""

import re

from tools.publish.home import home

LINK = re.compile(r"(\[([^\]]+)\]\(([^)#]+\.ipynb)\))<!-- colab -->")


def with_colab(text: str, address) -> str:
    """The text with a link to Colab behind each marked link. `address` maps a path to a URL, or to "" if there is none."""

    def add(found) -> str:
        chapter, _, page = found[3].partition("/")
        # An exercise page opens in its copy without solutions.
        url = address(
            f"exercises/{chapter}.ipynb" if page == "exercises.ipynb" else f"book/{found[3]}"
        )
        return found[1] + (f" ([Colab]({url}))" if url else "")

    return LINK.sub(add, text)


def fill(app, docname, source) -> None:
    if docname == "book/intro":
        source[0] = with_colab(source[0], home().colab)


def setup(app) -> None:
    app.connect("source-read", fill)
