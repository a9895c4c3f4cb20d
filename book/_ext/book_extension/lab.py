"""The lab: the shipped models run in the page, from classic scripts, because a page that is opened as a file may read no other file.

The modules of `book/_lab` become scripts: a page loads `start.js`. When the lab starts, it loads `parts.js`, `lab.js` and
`engine.js` (one after the other, so that none of them blocks the page), the tokenizer (`text.js`) and the weights
(`models/NAME.js`), which are the bytes of the library's own files. A comment `<!-- lab: PRESET -->` on a Markdown page becomes
the lab, and so does a paragraph of a notebook that contains only a link to `lab.md#lab-PRESET`. `toy`, the model of chapter 5
with two heads, has its own script.
"""

import base64
import json
import re
from functools import cache
from html import escape
from pathlib import Path

from docutils import nodes

from .light import size

SOURCES = Path(__file__).resolve().parents[2] / "_lab"
PAGE, HOME = "book/lab", "book/intro"
PLACE = re.compile(r"<!-- lab: ([\w-]+) -->")
MODELS = ("two-layer", "one-layer", "zero-layer")
# The module that each script is made for. `parts` is all that `lab.js` needs, and `lab` is `lab.js` alone.
SCRIPTS = {
    "start": "start.js",
    "toy": "toy.js",
    "parts": "lab.js",
    "lab": "lab.js",
    "engine": "worker.js",
}
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.M)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) )|^export \{[^}]*\};\n", re.M)
COMMENT = re.compile(r"^[ \t]*/\*\*(?:(?!\*/)[\s\S])*\*/[ \t]*\n|^[ \t]*// .*\n|^[ \t]+", re.M)
TOY = "toy"
NAME = re.compile(r"^(?:async )?(?:function|class|const|let) ([\w$]+)", re.M)
ROWS = 8  # of held-out text, over which the lab takes means


def modules(entry: str, folder: Path = SOURCES) -> list[Path]:
    """A module and all that it imports, each after what it needs."""
    found: list[Path] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(
                f"the modules of the lab import each other in a circle: {' -> '.join((*above, name))}"
            )
        path = folder / name
        if path not in found:
            for other in IMPORT.findall(path.read_text("utf-8")):
                visit(other, (*above, name))
            found.append(path)

    visit(entry, ())
    return found


def joined(entry: str, folder: Path = SOURCES) -> tuple[list[str], list[str]]:
    """The modules for one scope, without imports and exports, and the names that they declare; a name declared by two is refused."""
    parts, names = [], {}
    for path in modules(entry, folder):
        text = EXPORT.sub("", IMPORT.sub("", path.read_text("utf-8")))
        if left := re.search(r"^(?:import|export)\b.*", text, re.M):
            raise ValueError(f"{path.name}: {left[0]!r} is in a form that the build does not know")
        for name in NAME.findall(text):
            if names.setdefault(name, path.name) != path.name:
                raise ValueError(f"{path.name} and {names[name]} of the lab both declare {name}")
        parts.append(COMMENT.sub("", text))  # a reader who wants to read has the sources
    return parts, [name for name in names if names[name] != entry]


def script(name: str) -> str:
    """One of the scripts."""
    texts, shared = joined(SCRIPTS[name])
    if name == "parts":
        texts = texts[:-1]
    if name == "lab":
        texts = texts[-1:]
    given = f"{{ {', '.join(shared)} }}"
    code = '"use strict";\n' + f"const {given} = parts;\n" * (name == "lab") + "\n".join(texts)
    if name in ("start", "toy"):
        return f"(() => {{\n{code}}})();\n"
    if name == "engine":
        # The text of a function, which only the worker reads as code.
        return delivered("engine", f"() => {{\n{code}}}")
    if name == "parts":
        return f'circuitLab.deliver("parts", (() => {{\n{code}return {given};\n}})());\n'
    return f'circuitLab.deliver("lab", ((parts) => {{\n{code}return {{ open }};\n}}));\n'


def delivered(name: str, value) -> str:
    return f"circuitLab.deliver({json.dumps(name)}, {json.dumps(value, ensure_ascii=True, separators=(',', ':'))});\n"


def text() -> dict:
    """The training steps of each model, and as one string for the worker the tokenizer and the rows over which means are taken."""
    from circuitkit import models

    bpe = models.stored("models", "tokenizer.json")["model"]
    ids = bpe["vocab"]
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in bpe["merges"]]
    data = {
        "vocab": sorted(ids, key=ids.get),
        "merges": [ids[part] for pair in pairs for part in pair],
        "rows": models.heldout_rows(ROWS).tolist(),
    }
    steps = {name: models.checkpoints(name) for name in MODELS}
    return {"steps": steps, "data": json.dumps(data, ensure_ascii=False, separators=(",", ":"))}


def weights() -> dict[str, dict]:
    """The files of the models and their checkpoints, by the name that the lab asks for."""
    from circuitkit import models

    found = {}
    for name in MODELS:
        for step in models.checkpoints(name):
            path = models.weight_file(name, step)
            data = base64.b64encode(path.read_bytes()).decode()
            found[path.stem] = {
                "name": path.stem,
                "dHead": models.model_card(name)["sizes"]["d_head"],
                "weights": data,
            }
    return found


@cache
def presets() -> dict[str, dict]:
    """The presets by their ids, from the part of `presets.js` that is JSON."""
    text = (SOURCES / "presets.js").read_text("utf-8")
    return {one["id"]: one for one in json.loads(text[text.index("= [") + 2 : text.rindex(";")])}


def write(app, error) -> None:
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static/lab"
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        (folder / f"{name}.js").write_text(script(name), "utf-8")
    (folder / "text.js").write_text(delivered("text", text()), "utf-8")
    (folder / "lab.css").write_bytes((SOURCES / "lab.css").read_bytes())
    for name, data in weights().items():
        (folder / f"models/{name}.js").write_text(delivered(f"models/{name}", data), "utf-8")


def element(preset: str, page: str, *, inside: str = "", linked: bool = False, flags=()) -> str:
    """The lab before it starts; on its own page the presets can be linked to. `flags` are attributes without a value."""
    inside += "<noscript><p>The lab needs JavaScript.</p></noscript>"
    if preset == TOY:
        return f"<circuit-toy>{inside}</circuit-toy>"
    attributes = {"data-preset": preset, "data-page": page} | dict.fromkeys(flags, "")
    if linked:
        attributes["data-linked"] = ""
        inside += "".join(f'<span id="lab-{name}"></span>' for name in presets())
    written = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<circuit-lab{written}>{inside}</circuit-lab>"


def still(static: str) -> str:
    """The circuit of the first preset as a picture: what a page shows before the lab starts, and on paper."""
    alt = (
        "The circuit that predicts the next token of 'Mr. Dursley had a neighbour who disliked Mr. D': grey bands for "
        "the residual stream, four heads in each of two layers, and wires between them. The thickest wire leads from L0H1 to "
        "L1H3.K."
    )
    narrow = f'srcset="{static}lab-phone.png"{size(SOURCES.parent / "_static/lab-phone.png")}'
    image = f'<img class="ck-picture dark-light" src="{static}lab.png" alt="{alt}">'
    picture = f'<picture><source media="(max-width: 600px)" {narrow}>{image}</picture>'
    return f'<figure class="cl-still"><div class="cl-poster">{picture}</div></figure>'


def fill(app, docname, source) -> None:
    """Comments on Markdown pages."""
    if not docname.startswith("book/") or "<!-- lab:" not in source[0]:
        return
    page = app.builder.get_relative_uri(docname, PAGE) or "lab.html"

    def put(found) -> str:
        if found[1] not in (*presets(), TOY):
            raise ValueError(
                f"{docname}: the lab has no preset {found[1]!r}; expected one of {[*presets(), TOY]}"
            )
        pictured = found[1] == "dursley"
        inside = still("../" * docname.count("/") + "_static/") if pictured else ""
        flags = ["data-auto"] * pictured + ["data-home"] * (docname == HOME)
        lab = element(found[1], page, inside=inside, linked=docname == PAGE, flags=flags)
        return f"```{{raw}} html\n{lab}\n```"

    source[0] = PLACE.sub(put, source[0])


def name_presets(app, doctree) -> None:
    """Presets are targets: `[try it](lab.md#lab-dursley)` is a link like any other, checked at the build."""
    if app.env.docname == PAGE:
        slugs = app.env.metadata[PAGE].setdefault("myst_slugs", {})
        for name, preset in presets().items():
            slugs[f"lab-{name}"] = (1, f"lab-{name}", preset["name"])
        slugs[f"lab-{TOY}"] = (1, "lab-toy", "Two heads, three trigrams")
        slugs["how-to-read-it"] = (2, "how-to-read-it", "How to read it")


def bring_near(app, doctree, docname) -> None:
    """A paragraph that is nothing but a link to a preset becomes the lab; the link stays for a page without script."""
    if app.builder.format != "html":
        return
    page = app.builder.get_relative_uri(docname, PAGE)
    for paragraph in list(doctree.findall(nodes.paragraph)):
        (link, *others) = paragraph.children or [None]
        address = link.get("refuri", "") if isinstance(link, nodes.reference) and not others else ""
        found = re.fullmatch(re.escape(page) + r"#lab-([\w-]+)", address)
        if not found or found[1] not in (*presets(), TOY):
            continue
        inside = f'<p class="cl-link-to"><a class="reference internal" href="{escape(address)}">{escape(link.astext())}</a></p>'
        paragraph.replace_self(nodes.raw("", element(found[1], page, inside=inside), format="html"))


def scripts(app, pagename, templatename, context, doctree) -> None:
    for tag, name in (("<circuit-lab", "start"), ("<circuit-toy", TOY)):
        if tag in (context.get("body") or ""):
            app.add_css_file("lab/lab.css")
            app.add_js_file(f"lab/{name}.js", loading_method="defer")


def setup(app) -> None:
    app.connect("source-read", fill)
    app.connect("doctree-read", name_presets)
    app.connect("doctree-resolved", bring_near, priority=900)
    app.connect("html-page-context", scripts)
    app.connect("build-finished", write)
