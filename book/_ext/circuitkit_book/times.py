"""The table of what every notebook promises, made from the notebooks when the book is built."""

from pathlib import Path

import nbformat
from sphinx.util import logging

from tools.notebooks import (
    promises as chapter_times,
)  # the same count that the tests hold the pages to

log = logging.getLogger(__name__)
MARKER = "<!-- times -->"


def table() -> str:
    rows = ["| page | minutes to read | counted | seconds to run |", "|---|---:|---:|---:|"]
    for path in chapter_times.notebooks():
        title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].lstrip("# ")
        minutes, seconds = promised(path)
        counted = f"{chapter_times.reading_minutes(path):.0f}"
        rows.append(f"| {title} | {minutes} | {counted} | {seconds} |")
    return "\n".join(rows)


def promised(path: Path) -> tuple[str, str]:
    """What the page says; dashes, and a warning, when nothing can be read."""
    try:
        said = chapter_times.promise(path)
    except ValueError as error:
        log.warning("%s", error, location=str(path))
        said = None
    if said is None:
        return "–", "–"
    return str(said.minutes), str(said.seconds)


def fill(app, docname, source) -> None:
    if MARKER in source[0]:
        source[0] = source[0].replace(MARKER, table())


def setup(app) -> None:
    app.connect("source-read", fill)
