"""`make book SOLUTIONS=no`: pages and notebooks to download without the solutions of the exercises.

The cells with the tag `solution` and the folded text `Solution` are left out of every page before the search reads it. The notebook
that a page offers loses them, too; in its place the exercise page of a chapter offers only the reader's copy.
"""

import os
import re
from pathlib import Path

import nbformat
from docutils import nodes

LEFT_OUT = os.environ.get("SOLUTIONS") == "no"
SUMMARY = "<summary>Solution</summary>"
FOLDED = re.compile(rf"<details[^>]*>\s*{SUMMARY}.*?</details>", re.S)
SOLVED_PAGE = re.compile(r"\n*\*\*Solutions\*\*: .*")


def read(app, doctree) -> None:
    for cell in list(doctree.findall(nodes.container)):
        if "tag_solution" in cell["classes"]:
            cell.parent.remove(cell)
    for raw in list(doctree.findall(nodes.raw)):
        if SUMMARY in raw.astext():
            remove_to_the_end_of_the_fold(raw)


def remove_to_the_end_of_the_fold(first: nodes.raw) -> None:
    """Remove a folded part: the node that opens it, the one that closes it, and all between them."""
    siblings = first.parent.children
    start = end = siblings.index(first)
    while "</details>" not in siblings[end].astext():
        end += 1
    del first.parent[start : end + 1]


def rewrite_notebooks(app, error) -> None:
    """Take the solutions out of the notebooks that pages offer."""
    if error:
        return
    for path in Path(app.outdir).glob("_sources/book/**/*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [
            cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])
        ]
        for cell in notebook.cells:
            cell.source = FOLDED.sub("", cell.source)
        path.write_text(nbformat.writes(notebook), "utf-8")
    for path in Path(app.outdir).glob("_downloads/**/*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            cell.source = SOLVED_PAGE.sub("", FOLDED.sub("", cell.source))
        path.write_text(nbformat.writes(notebook), "utf-8")


def setup(app) -> None:
    if LEFT_OUT:
        app.connect("doctree-read", read, priority=50)
        app.connect("build-finished", rewrite_notebooks)
