"""The API reference: one page for each public module, from numpy docstrings.

A page is a file `book/api/<module>.md` that holds a marker. autodoc and napoleon write what stands there: everything that
the module lists in `__all__`. The page of the course package has one marker for each of its modules, which names the module. Docstrings use Markdown for `code` and $formulas$, which `to_rst` translates.
"""

import importlib
import re
from pathlib import Path

from sphinx.util.nodes import make_refnode

INDEX, PAGE = "<!-- packages -->", "<!-- names -->"
COURSE = re.compile(r"<!-- names: (circuitkit_book\.\w+) -->")
PAGES = Path(__file__).resolve().parents[2] / "api"


def fill(app, docname, source) -> None:
    """Replace a marker by the directive of a module, or by the list of all modules."""
    if INDEX in source[0]:
        source[0] = source[0].replace(INDEX, index())
    elif PAGE in source[0]:
        module = f"circuitkit.{docname.rpartition('/')[2]}"
        source[0] = source[0].replace(PAGE, members(module))
    else:
        source[0] = COURSE.sub(lambda match: members(match[1]), source[0])


def members(module: str) -> str:
    """The directive that describes every public name of a module."""
    return f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n   :special-members: __getitem__\n```\n"


def index() -> str:
    """Each module with its public names, which link to their descriptions."""
    rows = []
    for page in sorted(PAGES.glob("*.md")):
        if PAGE not in page.read_text("utf-8"):
            continue
        module = importlib.import_module(f"circuitkit.{page.stem}")
        names = sorted(module.__all__, key=str.lower)
        links = ", ".join(f"{{py:obj}}`{name} <circuitkit.{page.stem}.{name}>`" for name in names)
        rows.append(f"[circuitkit.{page.stem}](api/{page.name})\n: {links}\n")
    return "\n".join(rows)


LITERAL = re.compile(r"(``.*?``|:\w+:`.*?`)", re.S)
CODE = re.compile(r"(?<![`:\w])`([^`\n]+(?:\n[^`\n]+)?)`(?![`_])")
MODULE = re.compile(r"circuitkit\.[a-z_]+")
FORMULA = re.compile(r"(?<![\\$\w])\$\$?([^$\n]+(?:\n[^$\n]+)?)\$\$?")


def to_rst(app, what, name, obj, options, lines) -> None:
    """Translate `code` and $formulas$; examples stay as they are."""
    paragraphs = "\n".join(lines).split("\n\n")
    translated = [text if ">>>" in text else paragraph_to_rst(text) for text in paragraphs]
    lines[:] = "\n\n".join(translated).split("\n")


ENTRY = re.compile(r"^(\*{0,2}\w[\w, ]*?) : (.+)$")
SECTION = re.compile(r"^-{3,}$")


def words_below_names(app, what, name, obj, options, lines) -> None:
    """Put the words of a numpy section where napoleon expects them: below the name, not in place of its type.

    The signature shows the types already.
    """
    result: list[str] = []
    section = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if SECTION.match(following):
            section = line
        entry = ENTRY.match(line)
        if section in ("Parameters", "Raises") and entry:
            result += [entry[1], f"    {entry[2]}"]
        elif section == "Returns" and line == "Returns":
            result += ["", ".. rubric:: Returns", ""]
        elif section == "Returns" and entry:
            result += ["", f"**{entry[1]}**: {entry[2]}"]
        elif section == "Returns":
            result += [] if SECTION.match(line) else [line.strip()]
        else:
            result.append(line)
    lines[:] = result


def code_or_link(text: str) -> str:
    """Code in reStructuredText; the name of a module links to its description, if there is one."""
    return f":py:mod:`{text}`" if MODULE.fullmatch(text) else f"``{text}``"


def paragraph_to_rst(text: str) -> str:
    """One paragraph in reStructuredText."""
    text = CODE.sub(lambda match: code_or_link(" ".join(match[1].split())), text)
    text = FORMULA.sub(lambda match: f":math:`{' '.join(match[1].split())}`", text)
    pieces = LITERAL.split(text)
    # a bar would start a substitution, and a final underscore a link
    plain = [re.sub(r"(?<=\w)_(?!\w)", r"\_", piece.replace("|", r"\|")) for piece in pieces[::2]]
    pieces[::2] = plain
    return "".join(pieces)


def by_last_name(app, env, node, contnode):
    """Link a type to the module that documents it; the signature may name the file that defines it."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith(("circuitkit.", "circuitkit_book.")):
        return None
    last = target.rpartition(".")[2]
    objects = env.domaindata["py"]["objects"]
    documented = [name for name in objects if name.rpartition(".")[2] == last]
    if not documented:
        return contnode
    shortest = min(documented, key=len)
    entry = objects[shortest]
    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, shortest
    )


def setup(app) -> None:
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", to_rst, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", words_below_names, priority=450)
    app.connect("missing-reference", by_last_name)
