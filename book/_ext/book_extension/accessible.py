"""Fixes for the markup that Sphinx and docutils write, for readers who listen to the page, and of what they leave unread."""

import re

from docutils import nodes
from sphinx import addnodes

from . import theme

FORMULA = r'<span class="math notranslate nohighlight">\\(\1\\)</span>'


def fix(app, pagename, templatename, context, doctree) -> None:
    body = context.get("body") or ""
    # docutils calls a bibliography a list, although its entries have a role that a list may not contain.
    cites = has(doctree, nodes.citation)
    body = theme.CITATION_LIST.sub('<div class="citation-list">', body, pagename, needed=cites)
    body = theme.CITATION.sub("", body, pagename, needed=cites)
    # A signature on several lines is written as a definition list of definitions without terms.
    body = theme.SIGNATURE.sub(
        lambda found: lines_of_signature(found[1], pagename),
        body,
        pagename,
        needed=has(doctree, addnodes.desc_parameterlist, "multi_line_parameter_list"),
    )
    # Markdown does not read what stands in a line of HTML, and a question there may have a formula.
    context["body"] = theme.SUMMARY.sub(
        lambda found: re.sub(r"\$([^$]+)\$", FORMULA, found[0]),
        body,
        pagename,
        needed=False,
    )


def has(doctree, kind, attribute: str = "") -> bool:
    """Whether a page has a node of a kind, with an attribute that is true; a page without a tree has none."""
    found = doctree.findall(kind) if doctree else []
    return any(not attribute or node.get(attribute) for node in found)


def lines_of_signature(lines: str, page: str) -> str:
    lines = theme.PARAMETER.sub('<span class="ck-parameter"><em', lines, page)
    return theme.PARAMETER_END.sub("</em>,</span>", lines, page)


def setup(app) -> None:
    app.connect("html-page-context", fix)
