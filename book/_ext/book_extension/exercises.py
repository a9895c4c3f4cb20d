"""Exercises by name: {ex}`first_share` becomes their number, and a marker the instructors' table of all of them."""

from circuitkit_book.exercises.chapters import number_of
from docutils import nodes
from tools.check import exercise_pages

PAGE, MARKER = "book/instructors", "<!-- exercises: table -->"


def ex(name, rawtext, text, lineno, inliner, options=None, content=()):
    """The role `ex`: `Ex 2.2`."""
    try:
        return [nodes.Text(f"Ex {number_of(text)}")], []
    except ValueError as error:
        message = inliner.reporter.error(str(error), line=lineno)
        return [inliner.problematic(rawtext, rawtext, message)], [message]


def fill(app, docname, source) -> None:
    if docname == PAGE:
        source[0] = source[0].replace(MARKER, exercise_pages.table())


def setup(app) -> None:
    app.add_role("ex", ex)
    app.connect("source-read", fill)
