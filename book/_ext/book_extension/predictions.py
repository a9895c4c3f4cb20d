"""Predictions on the pages: the choices stay a list until `predict.js` makes buttons of them. Form and checks: `tools/check/predictions.py`."""

import json
from html import escape
from pathlib import Path

from docutils import nodes
from tools.check import predictions
from tools.check.numbers_in_prose import Names


def read(app, doctree) -> None:
    """Join the question, its choices and what the script needs; before the words on the folds are written."""
    source = Path(app.env.doc2path(app.env.docname))
    comments = [
        (one, predictions.COMMENT.match(one.astext())) for one in doctree.findall(nodes.raw)
    ]
    for comment, said in comments:
        if said is None:
            continue
        parent = comment.parent
        at = parent.index(comment)
        before = parent[at - 1]
        choices = before if isinstance(before, nodes.bullet_list) else None
        made = predictions.read(said[1], len(choices) if choices else 0, Names(source))
        parts = [parent[at - 2], choices] if choices else [before]
        data = {"right": made.right, "number": made.number, "numbers": made.numbers}
        box = nodes.container(classes=["ck-predict"])
        parent[at] = box
        for part in parts:
            parent.remove(part)
            box += part
        box += nodes.raw(
            "", f'<span hidden data-answer="{escape(json.dumps(data))}"></span>', format="html"
        )


def scripts(app, pagename, templatename, context, doctree) -> None:
    if "ck-predict" in (context.get("body") or ""):
        app.add_js_file("kept.js", loading_method="defer", priority=400)
        app.add_js_file("predict.js", loading_method="defer")


def setup(app) -> None:
    app.connect("doctree-read", read)
    app.connect("html-page-context", scripts)
