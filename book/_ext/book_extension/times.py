"""The table of times in the introduction, made from the **Time** lines of the notebooks when the book is built."""

import json
import re
from pathlib import Path

from sphinx.util import logging

BOOK = Path(__file__).resolve().parents[2]
PAGE, MARKER = "book/intro", "<!-- times -->"
TIME = re.compile(r"\*\*Time\*\*: about (\d+) minutes to read, (\d+) seconds to run")

log = logging.getLogger(__name__)


def markdown(path: Path) -> str:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def table() -> str:
    rows = ["| Page | Minutes to read | Seconds to run |", "|---|---:|---:|"]
    for path in sorted(BOOK.glob("*.ipynb")):
        text = markdown(path)
        found = TIME.search(text)
        if found:
            title = text.partition("\n")[0].lstrip("# ")
            rows.append(f"| [{title}]({path.name}) | {found[1]} | {found[2]} |")
        elif "**Time**" in text:
            log.warning("The Time line of this page cannot be read.", location=str(path))
    return "\n".join(rows)


def fill(app, docname, source) -> None:
    if docname == PAGE:
        for path in BOOK.glob("*.ipynb"):
            app.env.note_dependency(str(path))
        source[0] = source[0].replace(MARKER, table())


def setup(app) -> None:
    app.connect("source-read", fill)
