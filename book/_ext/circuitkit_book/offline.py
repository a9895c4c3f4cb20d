"""Serve every script from the book itself, and drop the ones that it does not use."""

import shutil
from importlib.util import find_spec
from pathlib import Path

# The parts of MathJax that the tex-chtml component loads on demand; the whole package is fifteen times as large.
MATHJAX = ("tex-chtml.js", "input/tex/extensions", "output/chtml/fonts/woff-v2")


def folder(package: str) -> Path:
    """Where an installed package keeps its files, without importing it."""
    return Path(find_spec(package).origin).parent


def copy_scripts(app, error) -> None:
    if error or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    shutil.copyfile(folder("circuitsvis") / "dist/cdn/iife.js", static / "circuitsvis.js")
    source = folder("sphinx-mathjax-offline") / "static/mathjax"
    for part in MATHJAX:
        target = static / "mathjax" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / part).is_dir():
            shutil.copytree(source / part, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source / part, target)


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
