"""The lab on the pages of the book. Its scripts and data come from `circuitkit.lab_page`.

A comment `<!-- lab: PRESET -->` on a Markdown page becomes the lab, and so does a paragraph of a notebook that contains only a
link to `lab.md#lab-PRESET`. Behind such a paragraph, a comment says what the reader is asked to do, and what stays closed until she
has made a guess:

    <!-- lab task
    task: Click a wire into L1H3 to cut it. Which three does the model need?
    closed: wires
    until: 3 wires
    -->

`closed` names panels: `wires` (their widths and their list), `parts`, `score`, `words`, `neurons`, `gates`. `until` is a number of wires or heads that
she has cut or switched off, or `answer TITLE` or `prediction NUMBER`: an exercise or a prediction of the page. Without the two lines,
nothing is closed. A line `text: ...` behind `task` takes the place of the text of the preset.
"""

import base64
import json
import re
from html import escape
from pathlib import Path

from circuitkit import models
from circuitkit.lab_page import bundle
from circuitkit_book import lab_data, superposition_models
from circuitkit_book.exercises.on_the_page import fields
from docutils import nodes
from safetensors.torch import save

from .light import size

STATIC = Path(__file__).resolve().parents[2] / "_static"
PAGE, HOME, BORN = "book/lab", "book/intro", "book/born-in-your-tab"
PLACE = re.compile(r"<!-- lab: ([\w-]+) -->")
TASK = re.compile(r"<!-- lab task\n(.*?)\n-->", re.S)
PANELS = ("wires", "parts", "score", "words", "neurons", "gates")
NUMBERS = ("no", "one", "two", "three", "four")
TOY, BIRTH, DAY = "toy", "birth", "day"


def write(app, error) -> None:
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static/lab"
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for name in lab_data.SCRIPTS:
        (folder / f"{name}.js").write_text(lab_data.script(name), "utf-8")
    (folder / "text.js").write_text(bundle.delivered("text", lab_data.text()), "utf-8")
    (folder / "births.js").write_text(bundle.delivered("births", lab_data.births()), "utf-8")
    for name in ("lab.css", "birth.css", "day.css"):
        (folder / name).write_bytes((bundle.SOURCES / name).read_bytes())
    for name, data in (lab_data.weights() | {"gated": gated_block()}).items():
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


def megabytes(preset: str) -> str:
    """What the model of a preset weighs in a script, in MB."""
    found = lab_data.presets()[preset]
    if found["model"] == "gated":
        return "0.1"
    size = models.weight_file(found["model"], found["step"]).stat().st_size
    return f"{size * 4 / 3 / 1e6:.1f}"  # in base64


def element(
    preset: str, page: str, *, inside: str = "", linked: bool = False, flags=(), task=None
) -> str:
    """The lab before it starts; on its own page the presets can be linked to. `flags` are attributes without a value."""
    inside += "<noscript><p>The lab needs JavaScript.</p></noscript>"
    if preset in (TOY, BIRTH, DAY):
        told = f' data-page="{escape(page)}"' if preset == BIRTH else ""
        told += "".join(f' {name}=""' for name in flags if preset == BIRTH)
        return f"<circuit-{preset}{told}>{inside}</circuit-{preset}>"
    attributes = {"data-preset": preset, "data-page": page, "data-size": megabytes(preset)}
    attributes |= dict.fromkeys(flags, "")
    if task:
        attributes["data-held"] = json.dumps(task, ensure_ascii=False)
    if linked:
        attributes["data-linked"] = ""
        inside += "".join(f'<span id="lab-{name}"></span>' for name in lab_data.presets())
    written = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<circuit-lab{written}>{inside}</circuit-lab>"


def held(comment: str, page: str) -> dict:
    """What a comment says about the lab in front of it, as `guess.js` reads it."""
    lines = [line.partition(":") for line in comment.split("\n")]
    said = {key.strip(): value.strip() for key, _, value in lines}
    first = [key for key in ("task", "text") if key in said]
    if "task" not in said or list(said) not in (first, [*first, "closed", "until"]):
        raise ValueError(
            f"{page}: the task of a lab has the lines {list(said)}; expected task, perhaps text, and perhaps closed and until"
        )
    panels = [panel for panel in said.get("closed", "").split(", ") if panel]
    if unknown := [panel for panel in panels if panel not in PANELS]:
        raise ValueError(f"{page}: the lab has no panel {unknown[0]!r}; expected some of {PANELS}")
    told = {key: said[key] for key in first}
    return told | {"panels": panels} | opened_by(said.get("until", ""), page)


def opened_by(until: str, page: str) -> dict:
    """What opens closed panels: the number of cuts, or the key under which an answer on the page is kept."""
    kind, _, rest = until.partition(" ")
    name = page.removeprefix("book/")
    if not until:
        return {}
    if kind.isdigit() and rest in ("wires", "heads"):
        done = {"wires": "cut", "heads": "switched off"}[rest]
        return {"cuts": int(kind), "until": f"after you have {done} {NUMBERS[int(kind)]} {rest}"}
    if kind == "prediction" and rest.isdigit():
        return {
            "key": f"circuitkit:prediction:{name}:{rest}",
            "until": "after your prediction",
        }
    if kind == "answer" and any(field["title"] == rest for field in fields().values()):
        words = f"after a right answer to the exercise “{rest.lower()}”"
        return {"key": f"circuitkit:answer:{name}:{rest}", "until": words}
    raise ValueError(
        f"{page}: nothing opens a lab `until: {until}`; expected `3 wires`, `2 heads`, `prediction 1`, or `answer TITLE` with the title of a short answer"
    )


STILLS = {
    "dursley": ("lab", "Mr. Dursley had a neighbour who disliked Mr. D"),
    "name": ("home", "The house belonged to Mr. Dorling. Nobody had seen Mr. D"),
}
"""The pictures of the circuit of a preset, without the end of their names, and its text."""


def still(static: str, preset: str) -> str:
    """The circuit of a preset as a picture: what a page shows before the lab starts, and on paper."""
    name, text = STILLS[preset]
    alt = (
        f"The circuit that predicts the next token of '{text}': grey bands for "
        "the residual stream, four heads in each of two layers, and wires between them. The thickest wire leads from L0H1 to "
        "L1H3.K."
    )
    narrow = f'srcset="{static}{name}-phone.png"{size(STATIC / f"{name}-phone.png")}'
    image = f'<img class="ck-picture dark-light" src="{static}{name}.png" alt="{alt}">'
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
        known = [*lab_data.presets(), TOY, BIRTH, DAY]
        if found[1] not in known:
            raise ValueError(
                f"{docname}: the lab has no preset {found[1]!r}; expected one of {known}"
            )
        static = "../" * docname.count("/") + "_static/"
        if found[1] == BIRTH:
            own = app.builder.get_relative_uri(docname, BORN) or "born-in-your-tab.html"
            return f"```{{raw}} html\n{element(BIRTH, own, inside=born(static))}\n```"
        pictured = found[1] in STILLS
        inside = still(static, found[1]) if pictured else ""
        flags = ["data-auto"] * pictured + ["data-home"] * (docname == HOME)
        lab = element(found[1], page, inside=inside, linked=docname == PAGE, flags=flags)
        return f"```{{raw}} html\n{lab}\n```"

    source[0] = PLACE.sub(put, source[0])


def name_presets(app, doctree) -> None:
    """Presets are targets: `[try it](lab.md#lab-dursley)` is a link like any other, checked at the build."""
    if app.env.docname == PAGE:
        slugs = app.env.metadata[PAGE].setdefault("myst_slugs", {})
        for name, preset in lab_data.presets().items():
            slugs[f"lab-{name}"] = (1, f"lab-{name}", preset["name"])
        slugs[f"lab-{TOY}"] = (1, "lab-toy", "Two heads, three trigrams")
        slugs["how-to-read-it"] = (2, "how-to-read-it", "How to read it")


def bring_near(app, doctree, docname) -> None:
    """A paragraph that is nothing but a link to a preset becomes the lab; the link stays for a page without script.

    So does one that is nothing but a link to "Born in your tab".
    """
    if app.builder.format != "html":
        return
    page, born_page = (app.builder.get_relative_uri(docname, name) for name in (PAGE, BORN))
    for paragraph in list(doctree.findall(nodes.paragraph)):
        (link, *others) = paragraph.children or [None]
        address = link.get("refuri", "") if isinstance(link, nodes.reference) and not others else ""
        found = re.fullmatch(re.escape(page) + r"#lab-([\w-]+)", address)
        preset = BIRTH if address and address == born_page else found and found[1]
        if preset not in (*lab_data.presets(), TOY, BIRTH):
            continue
        inside = f'<p class="cl-link-to"><a class="reference internal" href="{escape(address)}">{escape(link.astext())}</a></p>'
        task, after = None, paragraph.next_node(descend=False, siblings=True)
        if isinstance(after, nodes.raw) and (said := TASK.match(after.astext())):
            task = held(said[1], docname)
            after.parent.remove(after)
        if preset == BIRTH:
            made = element(BIRTH, address, inside=inside, flags=["data-later"])
        else:
            made = element(preset, page, inside=inside, flags=["data-auto"], task=task)
        paragraph.replace_self(nodes.raw("", made, format="html"))


def scripts(app, pagename, templatename, context, doctree) -> None:
    body = context.get("body") or ""
    later = "data-later" in body  # `start.js` brings the script of "Born in your tab"
    used = {"start": ["lab", BIRTH, DAY], TOY: [TOY], BIRTH: [] if later else [BIRTH]}
    for name, tags in used.items():
        if any(f"<circuit-{tag}" in body for tag in tags):
            app.add_css_file("lab/lab.css")
            app.add_js_file(f"lab/{name}.js", loading_method="defer")
            app.add_js_file("kept.js", loading_method="defer", priority=400)
    if f"<circuit-{BIRTH}" in body:
        app.add_css_file("lab/birth.css")
    if f"<circuit-{DAY}" in body:
        app.add_js_file(f"lab/{DAY}.js", loading_method="defer")  # it brings its own style


def setup(app) -> None:
    app.connect("source-read", fill)
    app.connect("doctree-read", name_presets)
    app.connect("doctree-resolved", bring_near, priority=900)
    app.connect("html-page-context", scripts)
    app.connect("build-finished", write)
