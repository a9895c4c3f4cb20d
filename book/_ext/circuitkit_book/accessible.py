"""Two mends of the markup that Sphinx and docutils write, for readers who listen to the page."""

import re


def mend(app, pagename, templatename, context, doctree) -> None:
    body = context.get("body") or ""
    # docutils calls a bibliography a list, although its entries have a role that a list may not contain.
    body = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    # A signature on several lines is written as a definition list of definitions without terms.
    body = re.sub(r"\n<dl>\n((?:<dd><em class=\"sig-param\">.*?</dd>\n)+)</dl>\n", lines_of_signature, body, flags=re.S)
    context["body"] = body


def lines_of_signature(found) -> str:
    return found[1].replace("<dd><em", '<span class="ck-parameter"><em').replace("</em>,</dd>", "</em>,</span>")


def setup(app) -> None:
    app.connect("html-page-context", mend)
