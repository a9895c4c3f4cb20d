"""The lab on the pages of the book. Its scripts and data come from `circuitkit.lab_page`.

A comment `<!-- lab: PRESET -->` on a Markdown page becomes the lab, and so does a paragraph of a notebook that contains only a
link to `lab.md#lab-PRESET`.
"""

import base64
import re
from html import escape
from pathlib import Path

from circuitkit.lab_page import bundle
from circuitkit_book import superposition_models
from docutils import nodes
from safetensors.torch import save

from .light import size

STATIC = Path(__file__).resolve().parents[2] / "_static"
PAGE, HOME, BORN = "book/lab", "book/intro", "book/born-in-your-tab"
PLACE = re.compile(r"<!-- lab: ([\w-]+) -->")
TOY, BIRTH, DAY = "toy", "birth", "day"


def write(app, error) -> None:
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static/lab"
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for name in bundle.SCRIPTS:
        (folder / f"{name}.js").write_text(bundle.script(name), "utf-8")
    (folder / "text.js").write_text(bundle.delivered("text", bundle.text()), "utf-8")
    (folder / "births.js").write_text(bundle.delivered("births", bundle.births()), "utf-8")
    for name in ("lab.css", "birth.css", "day.css"):
        (folder / name).write_bytes((bundle.SOURCES / name).read_bytes())
    for name, data in (bundle.weights() | {"gated": gated_block()}).items():
        path = folder / f"models/{name}.js"
        path.write_text(bundle.delivered(f"models/{name}", data), "utf-8")


def gated_block() -> dict:
    """The model of chapter 5 with a gated block, by the names of `weights.js`."""
    model = superposition_models.load_gated()
    attention, task = model.blocks[0].attn, model.task
    block = attention.block
    W_V, W_O = block.used_weights()
    weights = {"Q": block.W_Q, "K": block.W_K, "V": W_V, "GQ": block.W_GQ, "GK": block.W_GK}
    biases = {"Q": block.b_Q, "K": block.b_K, "V": block.b_V, "GQ": block.b_GQ, "GK": block.b_GK}
    # side by side, as in all layers of the lab
    tensors = {f"W_{name}": weight.movedim(0, 1).flatten(1) for name, weight in weights.items()}
    tensors |= {f"b_{name}": bias.flatten() for name, bias in biases.items()}
    tensors |= {"W_O": W_O.flatten(0, 1), "b_O": attention.b_O}
    tensors = {f"layers.0.{name}": tensor for name, tensor in tensors.items()}
    tensors |= {"W_E": model.W_E, "W_U": model.W_U}
    data = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
    letters = [f"{kind}{number}" for kind in "BC" for number in range(1, task.n_trigrams + 1)]
    card = {"dHead": block.recipe.d_head, "nCtx": task.n_ctx, "named": True}
    card |= {"tokens": ["A", *letters, "start"], "rows": task.sample(8, seed=0).tolist()}
    return {"name": "gated", "card": card, "weights": base64.b64encode(data).decode()}


def element(preset: str, page: str, *, inside: str = "", linked: bool = False, flags=()) -> str:
    """The lab before it starts; on its own page the presets can be linked to. `flags` are attributes without a value."""
    inside += "<noscript><p>The lab needs JavaScript.</p></noscript>"
    if preset in (TOY, BIRTH, DAY):
        told = f' data-page="{escape(page)}"' if preset == BIRTH else ""
        return f"<circuit-{preset}{told}>{inside}</circuit-{preset}>"
    attributes = {"data-preset": preset, "data-page": page} | dict.fromkeys(flags, "")
    if linked:
        attributes["data-linked"] = ""
        inside += "".join(f'<span id="lab-{name}"></span>' for name in bundle.presets())
    written = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<circuit-lab{written}>{inside}</circuit-lab>"


def still(static: str) -> str:
    """The circuit of the first preset as a picture: what a page shows before the lab starts, and on paper."""
    alt = (
        "The circuit that predicts the next token of 'Mr. Dursley had a neighbour who disliked Mr. D': grey bands for "
        "the residual stream, four heads in each of two layers, and wires between them. The thickest wire leads from L0H1 to "
        "L1H3.K."
    )
    narrow = f'srcset="{static}lab-phone.png"{size(STATIC / "lab-phone.png")}'
    image = f'<img class="ck-picture dark-light" src="{static}lab.png" alt="{alt}">'
    picture = f'<picture><source media="(max-width: 600px)" {narrow}>{image}</picture>'
    return f'<figure class="cl-still"><div class="cl-poster">{picture}</div></figure>'


def born(static: str) -> str:
    """A run of "Born in your tab" as a picture: what a page shows without a script, and on paper."""
    alt = (
        "Curves over 240 training steps, with seed 1: the accuracy, the prefix matching of L1H0 and the previous-token score of L0H0 "
        "stay low until step 60 and rise steeply around step 84, and the loss falls there. The attention pattern of L0H0 is a "
        "stripe below the diagonal. That of L1H0 has stripes that lead to the token after each earlier occurrence."
    )
    return f'<figure class="cl-still"><img class="ck-picture dark-light" src="{static}birth.png" alt="{alt}"></figure>'


def fill(app, docname, source) -> None:
    """Comments on Markdown pages."""
    if not docname.startswith("book/") or "<!-- lab:" not in source[0]:
        return
    page = app.builder.get_relative_uri(docname, PAGE) or "lab.html"

    def put(found) -> str:
        known = [*bundle.presets(), TOY, BIRTH, DAY]
        if found[1] not in known:
            raise ValueError(
                f"{docname}: the lab has no preset {found[1]!r}; expected one of {known}"
            )
        static = "../" * docname.count("/") + "_static/"
        if found[1] == BIRTH:
            own = app.builder.get_relative_uri(docname, BORN) or "born-in-your-tab.html"
            return f"```{{raw}} html\n{element(BIRTH, own, inside=born(static))}\n```"
        pictured = found[1] == "dursley"
        inside = still(static) if pictured else ""
        flags = ["data-auto"] * pictured + ["data-home"] * (docname == HOME)
        lab = element(found[1], page, inside=inside, linked=docname == PAGE, flags=flags)
        return f"```{{raw}} html\n{lab}\n```"

    source[0] = PLACE.sub(put, source[0])


def name_presets(app, doctree) -> None:
    """Presets are targets: `[try it](lab.md#lab-dursley)` is a link like any other, checked at the build."""
    if app.env.docname == PAGE:
        slugs = app.env.metadata[PAGE].setdefault("myst_slugs", {})
        for name, preset in bundle.presets().items():
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
        if not found or found[1] not in (*bundle.presets(), TOY):
            continue
        inside = f'<p class="cl-link-to"><a class="reference internal" href="{escape(address)}">{escape(link.astext())}</a></p>'
        paragraph.replace_self(nodes.raw("", element(found[1], page, inside=inside), format="html"))


def scripts(app, pagename, templatename, context, doctree) -> None:
    used = {"start": ["lab", BIRTH, DAY], TOY: [TOY], BIRTH: [BIRTH]}
    for name, tags in used.items():
        if any(f"<circuit-{tag}" in (context.get("body") or "") for tag in tags):
            app.add_css_file("lab/lab.css")
            app.add_js_file(f"lab/{name}.js", loading_method="defer")
            if name == BIRTH:
                app.add_css_file("lab/birth.css")
    if f"<circuit-{DAY}" in (context.get("body") or ""):
        app.add_js_file(f"lab/{DAY}.js", loading_method="defer")  # it brings its own style


def setup(app) -> None:
    app.connect("source-read", fill)
    app.connect("doctree-read", name_presets)
    app.connect("doctree-resolved", bring_near, priority=900)
    app.connect("html-page-context", scripts)
    app.connect("build-finished", write)
