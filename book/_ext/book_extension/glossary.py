"""Link the first use of a glossary term on each page to the glossary, with the definition on hover and on focus.

Notebooks stay as they are: the links are made when a page is written. A definition is part of the page, so it needs no
script; `glossary.js` only lets the Escape key hide one that is in the way.
"""

import re
from functools import cache
from html import escape

from docutils import nodes
from sphinx import addnodes

PAGE = "book/notation"
# Terms that are everyday words too: a link would often be wrong.
EVERYDAY = {
    "cut",
    "key",
    "loss",
    "path",
    "query",
    "score",
    "source",
    "token",
    "value",
    "vocabulary",
}
# Where a link would be wrong (links, code, formulas) or in the way (headings, captions, tables, the API reference).
LEFT_ALONE = (
    nodes.title, nodes.reference, addnodes.pending_xref, nodes.literal, nodes.literal_block, nodes.math, nodes.math_block,
    nodes.raw, nodes.caption, nodes.table, nodes.term, nodes.rubric, nodes.citation, nodes.comment, addnodes.desc, nodes.field_name,
    addnodes.toctree, addnodes.compact_paragraph,
)  # fmt: skip


class glossed(nodes.Inline, nodes.TextElement):
    """A used term, with `refuri`, `number` and `definition` (HTML)."""


def write(self, node) -> None:
    label = f"gloss-{node['number']}"
    self.body.append(
        f'<span class="ck-gloss"><a href="{escape(node["refuri"])}" aria-describedby="{label}">'
    )


def close(self, node) -> None:
    label = f"gloss-{node['number']}"
    self.body.append(
        f'</a><span class="ck-definition" role="tooltip" id="{label}">{node["definition"]}</span></span>'
    )


def as_html(node) -> str:
    """A definition as phrasing content: words, formulas and code, without links."""
    if isinstance(node, nodes.Text):
        return escape(str(node))
    inside = "".join(as_html(child) for child in node.children)
    if isinstance(node, nodes.math):
        return f'<span class="math notranslate nohighlight">\\({inside}\\)</span>'
    if isinstance(node, nodes.literal):
        return f"<code>{inside}</code>"
    return inside


@cache  # once a build: every page asks
def entries(env) -> dict[str, tuple[str, str]]:
    """Every term, in lower case, with the anchor of its entry and the HTML of its definition."""
    found = {}
    for item in env.get_doctree(PAGE).findall(nodes.definition_list_item):
        terms = [node for node in item.children if isinstance(node, nodes.term) and node["ids"]]
        text = " ".join(as_html(paragraph) for paragraph in item.findall(nodes.paragraph))
        text = text.replace("\n", " ")
        for term in terms:
            if term.astext() not in EVERYDAY:
                found[term.astext().lower()] = (term["ids"][0], text)
    return found


def pattern(terms) -> re.Pattern:
    """Any of the terms as whole words, the longest first, in singular or plural, hyphenated or over a line break too."""
    ordered = sorted(terms, key=len, reverse=True)
    either = "|".join(re.escape(term).replace(r"\ ", r"[\s-]+") for term in ordered)
    return re.compile(rf"(?<![\w-])({either})(s?)(?![\w-])", re.I)


def as_said(words: str) -> str:
    return re.sub(r"\s+", " ", words.lower())


def untouched(node) -> bool:
    """Whether the text stands nowhere that is left alone."""
    while node is not None:
        if isinstance(node, LEFT_ALONE):
            return False
        node = node.parent
    return True


def link(app, doctree, docname) -> None:
    if app.builder.format != "html" or docname == PAGE or PAGE not in app.env.all_docs:
        return
    known = entries(app.env)
    search, done, number = pattern(known), set(), 0
    address = app.builder.get_relative_uri(docname, PAGE)
    for text in list(doctree.findall(nodes.Text)):
        if not untouched(text.parent):
            continue
        rest, parts, at = str(text), [], 0
        for used in search.finditer(rest):
            said = as_said(used[1])
            anchor, definition = known.get(said) or known[said.replace("-", " ")]
            if definition in done:
                continue
            done.add(definition)
            number += 1
            place = f"{address}#{anchor}"
            node = glossed(used[0], used[0], refuri=place, definition=definition, number=number)
            parts += [nodes.Text(rest[at : used.start()]), node]
            at = used.end()
        if parts:
            parts.append(nodes.Text(rest[at:]))
            text.parent.replace(text, [part for part in parts if part.astext()])


def setup(app) -> None:
    app.add_node(glossed, html=(write, close))
    app.add_css_file("glossary.css")
    app.add_js_file("glossary.js", loading_method="defer")
    app.connect("doctree-resolved", link)
