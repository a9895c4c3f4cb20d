"""Serve every script from the book itself, and drop the ones that it does not use."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import circuitkit.figures

# The parts of MathJax that write formulas, which `formulas.js` brings; its ready-made file adds a menu that is as large as
# half of them.
MATHJAX = (
    "startup",
    "core",
    "input/tex",
    "output/chtml",
    "output/chtml/fonts/tex",
    "a11y/assistive-mml",
)
# What these load on demand.
MATHJAX_FOLDERS = ("input/tex/extensions", "output/chtml/fonts/woff-v2")


def folder(package: str) -> Path:
    """Where an installed package keeps its files, without importing it."""
    return Path(find_spec(package).origin).parent


def copy_scripts(app) -> None:
    if app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    static.mkdir(parents=True, exist_ok=True)
    for name in ("attention.css", "attention.js"):
        shutil.copyfile(Path(circuitkit.figures.__file__).with_name(name), static / name)
    shutil.copyfile(folder("circuitsvis") / "dist/cdn/iife.js", static / "circuitsvis.js")
    source, target = folder("sphinx-mathjax-offline") / "static/mathjax", static / "mathjax"
    for part in MATHJAX_FOLDERS:
        shutil.copytree(source / part, target / part, dirs_exist_ok=True)
    for part in MATHJAX:
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / f"{part}.js", target / f"{part}.js")
    (target / "tex-chtml.js").write_bytes(Path(__file__).with_name("formulas.js").read_bytes())


def is_thebe(file) -> bool:
    return (
        "thebe"
        in f"{getattr(file, 'filename', file)} {getattr(file, 'attributes', {}).get('body', '')}".lower()
    )


def drop_thebe(app, pagename, templatename, context, doctree) -> None:
    """Jupyter Book always loads thebe; its script declares a name twice and the browser reports an error."""
    for kind in ("script_files", "css_files"):
        context[kind] = [file for file in context.get(kind) or [] if not is_thebe(file)]


def setup(app) -> None:
    app.add_css_file("attention.css")
    app.add_css_file("circuitkit.css")
    for script in ("attention.js", "stand.js", "wide.js"):
        app.add_js_file(script, loading_method="defer")
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("builder-inited", copy_scripts)
