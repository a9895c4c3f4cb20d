"""Fields for the short answers: below the cell of a check, `answers.js` makes a field that gives the same replies."""

import json
import re
from html import escape

from circuitkit_book.exercises.on_the_page import fields
from docutils import nodes

CHECK = re.compile(r"\bex\.(check_\w+)\(")


def read(app, doctree) -> None:
    known = fields()
    for cell in list(doctree.findall(nodes.container)):
        if "cell" not in cell["classes"] or "tag_solution" in cell["classes"]:
            continue
        source = next(cell.findall(nodes.literal_block), None)
        found = CHECK.search(source.astext()) if source else None
        if found and found[1] in known:
            data = escape(json.dumps(known[found[1]], ensure_ascii=False))
            place = cell.parent.index(cell) + 1
            made = nodes.raw(
                "", f'<div class="ck-answer" data-field="{data}"></div>', format="html"
            )
            cell.parent.insert(place, made)


def scripts(app, pagename, templatename, context, doctree) -> None:
    if "ck-answer" in (context.get("body") or ""):
        app.add_js_file("kept.js", loading_method="defer", priority=400)
        app.add_js_file("answers.js", loading_method="defer")


def setup(app) -> None:
    app.connect("doctree-read", read)
    app.connect("html-page-context", scripts)
