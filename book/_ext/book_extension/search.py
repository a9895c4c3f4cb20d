"""The book's own search: an index of sections in a script, because a page that is opened as a file may read no other file.

What a reader sees as text is found: paragraphs, terms with their meanings, names of the library, claims. Code, outputs
and formulas are not indexed. `search.js` asks the index.
"""

import json
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

from . import theme

SILENT = (
    nodes.title,
    nodes.literal_block,
    nodes.math,
    nodes.math_block,
    nodes.image,
    nodes.comment,
    addnodes.desc_signature,
)
OURS = '  <script defer src="_static/search-index.js"></script>\n  <script defer src="_static/search.js"></script>\n'
TAG = re.compile(r"<(style|script|summary|title)\b.*?</\1>|<!--.*?-->|<[^>]+>", re.S)
TERM, NAME = 1, 2  # kinds of entries beside sections


def entries(doctree) -> list[list]:
    """Of each section, term and name of a page: anchor, title, text and kind."""
    found: dict[int, list] = {}

    def open_(node, anchor: str, title: str, kind: int = 0) -> None:
        found[id(node)] = [anchor, title, [], kind]

    def visit(node, place) -> None:
        if isinstance(node, nodes.section):
            title = node.next_node(nodes.title)
            open_(node, node["ids"][0], words(title), 0)
            place = node
        elif (
            isinstance(node, nodes.definition_list_item)
            and (term := node.next_node(nodes.term))
            and term["ids"]
        ):
            open_(node, term["ids"][0], words(term), TERM)
            place = node
        elif (
            isinstance(node, addnodes.desc)
            and (first := node.next_node(addnodes.desc_signature))
            and first["ids"]
        ):
            open_(node, first["ids"][0], first["ids"][0].removeprefix("circuitkit."), NAME)
            place = node
        elif (
            isinstance(node, nodes.container)
            and node.get("nb_element") == "cell_code"
            or isinstance(node, SILENT)
        ):
            return
        elif isinstance(node, (nodes.paragraph, nodes.raw, nodes.field)):
            if place is not None and (text := words(node)):
                found[id(place)][2].append(text)
            return
        for child in node.children:
            visit(child, place)

    visit(doctree, None)
    return [[anchor, title, "\n".join(text), kind] for anchor, title, text, kind in found.values()]


def words(node) -> str:
    """The words of a node, without formulas."""
    if isinstance(node, (nodes.math, nodes.math_block)):
        return "…"
    if isinstance(node, nodes.raw):
        return " ".join(TAG.sub(" ", node.astext()).split())
    if isinstance(node, nodes.Text):
        return str(node)
    return (
        " ".join("".join(words(child) for child in node.children).split())
        if is_block(node)
        else "".join(map(words, node.children))
    )


def is_block(node) -> bool:
    return isinstance(node, (nodes.paragraph, nodes.title, nodes.term, nodes.field))


def read(app, doctree) -> None:
    """Keep the entries of a page while its tree is at hand, because reading all trees again takes seconds."""
    if not hasattr(app.env, "ck_entries"):
        app.env.ck_entries = {}
    app.env.ck_entries[app.env.docname] = entries(doctree)


def finish(app, error) -> None:
    if error or app.builder.format != "html":
        return
    out, pages = Path(app.outdir), []
    for name in sorted(app.env.found_docs):
        title = words(app.env.titles[name])
        pages.append([app.builder.get_target_uri(name), title, app.env.ck_entries[name]])
    data = json.dumps(pages, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    (out / "_static/search-index.js").write_text(f"const searchIndex = {data};\n", "utf-8")
    page = out / "search.html"
    text = theme.SEARCH_SCRIPTS.sub("", page.read_text("utf-8"), page.name)
    text = theme.HEAD_END.sub(f"{OURS}</head>", text, page.name, count=1)
    page.write_text(text, "utf-8")
    for unused in ("searchindex.js", "_static/searchtools.js", "_static/language_data.js"):
        (out / unused).unlink(missing_ok=True)


def setup(app) -> None:
    app.connect("doctree-read", read, priority=900)
    app.connect("build-finished", finish, priority=800)
