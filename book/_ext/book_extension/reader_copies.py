"""Offer the reader's copy of an exercise notebook as a file: it is no page of the book, so a link to it is a download."""

import re

COPY = re.compile(r"\]\((?=\.\./\.\./exercises/[\w-]+\.ipynb\))")


def as_download(app, docname, source) -> None:
    if docname.startswith("book/exercises/"):
        source[0] = COPY.sub("](path:", source[0])


def setup(app) -> None:
    app.connect("source-read", as_download)
