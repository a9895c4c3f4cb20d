"""The API reference: one page for each public package, from docstrings written in plain Markdown.

A page is a file `book/api/<package>.md` that holds the marker; what stands on it is what the package exports.
"""

import importlib
import pkgutil
import re
from typing import Annotated, get_origin

from sphinx.ext import autodoc
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import inspect, typing
from sphinx.util.nodes import make_refnode
from tools.check.public_names import records

INDEX, PAGE = "<!-- packages -->", "<!-- names -->"
ORDER = (
    "anatomy",
    "ablation",
    "models",
    "residual",
    "circuits",
    "training",
    "induction",
    "conversion",
    "superposition",
    "exercises",
    "claims",
    "figures",
)


def sections() -> dict[str, list[str]]:
    """Each public module with the names to document: the root first, then packages in the reader's order.

    A name that the root offers is documented there only.
    """
    import circuitkit

    found = [
        name for _, name, _ in pkgutil.iter_modules(circuitkit.__path__) if not name.startswith("_")
    ]
    found.sort(key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    root = [name for name in getattr(circuitkit, "__all__", ()) if name not in found]
    modules = {"circuitkit": root}
    for name in found:
        module = importlib.import_module(f"circuitkit.{name}")
        modules[module.__name__] = [
            public for public in getattr(module, "__all__", ()) if public not in root
        ]
    return {name: names for name, names in modules.items() if names}


def fill(app, docname, source) -> None:
    if INDEX in source[0]:
        source[0] = source[0].replace(INDEX, index())
    elif PAGE in source[0]:
        module = f"circuitkit.{docname.rpartition('/')[2]}"
        source[0] = source[0].replace(PAGE, members(module, sections()[module]))


def members(module: str, names: list[str]) -> str:
    """Directives for the names of a module; what is neither function nor class is described where it is assigned."""
    there = importlib.import_module(module)
    called = [name for name in names if callable(getattr(there, name))]
    rst = f".. automodule:: {module}\n   :members: {', '.join(called)}\n"
    for name in names:
        if name not in called:
            text = paragraph_to_rst(" ".join(described(there, name))).strip()
            rst += f"\n.. py:data:: {name}\n\n   {text}\n"
    for kind in records().get(module, ()):
        rst += f"\n.. autoclass:: {kind.__module__}.{kind.__name__}\n   :members:\n"
    return f"```{{eval-rst}}\n{rst}```\n"


def described(module, name: str) -> list[str]:
    """The string below an assignment, or the comment above it, in the file of the package that has it."""
    for _, part, _ in pkgutil.iter_modules(module.__path__, f"{module.__name__}."):
        found = ModuleAnalyzer.for_module(part).find_attr_docs()
        if ("", name) in found:
            return found["", name]
    raise ValueError(
        f"{module.__name__}.{name} is public and nothing beside its assignment says what it is"
    )


def index() -> str:
    """The names that the root offers in full, and every other public name with a link to its page."""
    parts = []
    for module, names in sections().items():
        package = module.rpartition(".")[2]
        if module == "circuitkit":
            root = f"## {module}\n\n{members(module, names)}\n"
        else:
            links = ", ".join(f"{{py:obj}}`{name} <{module}.{name}>`" for name in names)
            parts.append(f"[{module}](api/{package}.md)\n: {links}\n")
    return "## Every name, by package\n\n" + "\n".join(parts) + "\n" + root


LITERAL = re.compile(r"(``.*?``|:\w+:`.*?`)", re.S)


def to_rst(app, what, name, obj, options, lines) -> None:
    """`code` and $formula$ as Markdown writes them, in the words of reStructuredText; examples stay as they are."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()  # what Python says of a field of a tuple that has no words of its own
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(
        text if ">>>" in text else paragraph_to_rst(text) for text in paragraphs
    ).split("\n")


def paragraph_to_rst(text: str) -> str:
    text = re.sub(
        r"(?<![`:\w])`([^`\n]+(?:\n[^`\n]+)?)`(?![`_])",
        lambda found: f"``{' '.join(found[1].split())}``",
        text,
    )
    text = re.sub(r"\$\$(.+?)\$\$", as_math, text, flags=re.S)
    text = re.sub(r"(?<![\\$\w])\$([^$\n]+(?:\n[^$\n]+)?)\$", as_math, text)
    pieces = LITERAL.split(text)
    # A bar would start a substitution, and a final underscore a link.
    pieces[::2] = [
        re.sub(r"(?<=\w)_(?!\w)", r"\_", piece.replace("|", r"\|")) for piece in pieces[::2]
    ]
    return "".join(pieces)


def as_math(found) -> str:
    return ":math:`" + " ".join(found[1].split()) + "`"


def through_the_door(app, env, node, contnode):
    """Link a name of a private module to the public name that is documented; one that is private stays plain text."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("circuitkit."):
        return None
    last = target.rpartition(".")[2]
    public = sorted(
        (name for name in env.domaindata["py"]["objects"] if name.rpartition(".")[2] == last),
        key=len,
    )
    if not public:
        return contnode if "._" in target else None
    entry = env.domaindata["py"]["objects"][public[0]]
    return make_refnode(
        app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, public[0]
    )


def drop_back_links(app, pagename, templatename, context, doctree) -> None:
    """A source page guesses which public module documents its names, and guesses wrong when there are two."""
    if pagename.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context.get("body") or "")


def without_rules(annotation, /, *given, **options) -> str:
    """`int`, where the library's own annotation also says which ones: a message says that when it is needed."""
    kind = annotation.__origin__ if get_origin(annotation) is Annotated else annotation
    return stringify(kind, *given, **options)


stringify = typing.stringify_annotation


def setup(app) -> None:
    for module in (typing, inspect, autodoc):
        module.stringify_annotation = without_rules
    app.connect("html-page-context", drop_back_links)
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", to_rst)
    app.connect("missing-reference", through_the_door)
