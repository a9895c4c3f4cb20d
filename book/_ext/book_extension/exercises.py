"""Exercises by name: {ex}`first_share` becomes their number.

One marker becomes the instructors' table of all exercises, and one in the table of a chapter the time of its exercises.
"""

from pathlib import Path

from circuitkit_book.exercises.chapters import number_of
from docutils import nodes
from tools.check import exercise_pages

PAGE, TABLE, TIME = "book/instructors", "<!-- exercises: table -->", "<!-- exercises: time -->"


def ex(name, rawtext, text, lineno, inliner, options=None, content=()):
    """The role `ex`: `Ex 2.2`."""
    try:
        return [nodes.Text(f"Ex {number_of(text)}")], []
    except ValueError as error:
        message = inliner.reporter.error(str(error), line=lineno)
        return [inliner.problematic(rawtext, rawtext, message)], [message]


def fill(app, docname, source) -> None:
    if docname == PAGE:
        source[0] = source[0].replace(TABLE, exercise_pages.table())
    if TIME in source[0]:
        page = Path(app.env.doc2path(docname)).with_name("exercises.ipynb")
        source[0] = source[0].replace(TIME, exercise_pages.time(page))


def setup(app) -> None:
    app.add_role("ex", ex)
    app.connect("source-read", fill)
