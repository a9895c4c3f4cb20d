"""Serve every script from the book itself, and drop the ones that it does not use."""

import shutil
from importlib.util import find_spec
from pathlib import Path

# The parts of MathJax that write formulas; its ready-made file adds a menu that is as large as half of them.
MATHJAX = ("startup", "core", "input/tex", "output/chtml", "output/chtml/fonts/tex", "a11y/assistive-mml")
# What these load on demand.
MATHJAX_FOLDERS = ("input/tex/extensions", "output/chtml/fonts/woff-v2")


def folder(package: str) -> Path:
    """Where an installed package keeps its files, without importing it."""
    return Path(find_spec(package).origin).parent


def copy_scripts(app, error) -> None:
    if error or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    shutil.copyfile(folder("circuitsvis") / "dist/cdn/iife.js", static / "circuitsvis.js")
    source, target = folder("sphinx-mathjax-offline") / "static/mathjax", static / "mathjax"
    for part in MATHJAX_FOLDERS:
        shutil.copytree(source / part, target / part, dirs_exist_ok=True)
    (target / "tex-chtml.js").write_text(mathjax(source), "utf-8")


def mathjax(source: Path) -> str:
    """The parts in one file. The first of them starts when the file has ended, and finds the others there."""
    parts = [(source / f"{part}.js").read_text("utf-8") for part in MATHJAX]
    names = [f"{part}.js" if "fonts" in part else part for part in ("loader", *MATHJAX)]
    first = Path(__file__).with_name("formulas.js").read_text("utf-8")
    return "\n;".join([first, parts[0], f"MathJax.loader.preLoad({', '.join(map(repr, names))});", *parts[1:]])


def is_thebe(file) -> bool:
    return "thebe" in f"{getattr(file, 'filename', file)} {getattr(file, 'attributes', {}).get('body', '')}".lower()


def drop_thebe(app, pagename, templatename, context, doctree) -> None:
    """Jupyter Book always loads thebe; its script declares a name twice and the browser reports an error."""
    for kind in ("script_files", "css_files"):
        context[kind] = [file for file in context.get(kind) or [] if not is_thebe(file)]


def setup(app) -> None:
    app.add_css_file("circuitkit.css")
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("build-finished", copy_scripts)
