"""The lab in the book's pages: its scripts, its models, the rows over which it takes means, its settings."""

import base64
import json
import re
from functools import cache

from circuitkit import models
from circuitkit.data import stored
from circuitkit.lab_page import bundle

MODELS = ("two-layer", "one-layer", "zero-layer")
WITH_MLPS = "two-layer-mlp"
# Of how many heads a neuron of its copies consists.
HEADS_PER_NEURON = (1, 5)
ROWS = 8  # of held-out text, over which the lab takes means

SCRIPTS = (*bundle.SCRIPTS, "toy", "birth", "cradle", "day")
"""The scripts of the pages: those of every lab; `toy`, the model of chapter 5 with two heads; `birth`, the model that is trained in
the page, by `cradle`, with the engine; and `day`, the circuit of the day."""


def script(name: str) -> str:
    """One of the scripts."""
    if name in bundle.SCRIPTS:
        return bundle.script(name)
    return cradle() if name == "cradle" else bundle.alone(f"{name}.js")


def cradle() -> str:
    """The text of a function, which only a worker reads as code; what it shares with the engine, it gets from there."""
    ours, theirs = bundle.modules("birth_worker.js"), bundle.modules(bundle.SCRIPTS["engine"])
    texts, _ = bundle.joined("birth_worker.js")
    both = [path.read_text("utf-8") for path in ours if path in theirs]
    known = bundle.NAME.findall(bundle.EXPORT.sub("", "\n".join(both)))
    code = "\n".join(text for path, text in zip(ours, texts, strict=True) if path not in theirs)
    given = f"const {{ {', '.join(known)} }} = parts;\n"
    return bundle.delivered("cradle", f'(parts) => {{\n"use strict";\n{given}{code}}}')


def text() -> dict:
    """The training steps of each model, and as one string for the worker the tokenizer and the rows over which means are taken."""
    data = bundle.byte_pairs(stored("models", "tokenizer.json")["model"])
    data["rows"] = models.heldout_rows(ROWS).tolist()
    steps = {name: models.checkpoints(name) for name in (*MODELS, WITH_MLPS)}
    steps |= {f"{WITH_MLPS}-{count}": steps[WITH_MLPS] for count in HEADS_PER_NEURON}
    steps["gated"] = [0]  # its weights come with the book
    return {"steps": steps, "data": json.dumps(data, ensure_ascii=False, separators=(",", ":"))}


def weights() -> dict[str, dict]:
    """The files of the models and their checkpoints, by the name that the lab asks for."""
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
    return found | {WITH_MLPS: model_with_mlps()}


def model_with_mlps() -> dict:
    """The model with MLPs by the names of `weights.js`, and the heads that can stand for a neuron."""
    from safetensors.torch import load_file, save

    matrices = {"fc_in": "in", "fc_out": "out"} | {side: side.upper() for side in "qkvo"}
    tensors = {}
    for name, tensor in load_file(models.weight_file(WITH_MLPS)).items():
        *place, module, kind = name.split(".") if "." in name else ("", "", "")
        if module in matrices:
            # torch holds the transpose
            name = ".".join([*place, f"{'W' if kind == 'weight' else 'b'}_{matrices[module]}"])
            tensor = tensor.T.contiguous() if kind == "weight" else tensor
        tensors[re.sub(r"(ln\w+)\.weight$", r"\1.gain", name)] = tensor
    fits = stored("conversion", "activations.json")["fits"]["gelu"]
    sums = {
        count: list(zip(*(fits[str(count)][name] for name in "bcad"), strict=True))
        for count in HEADS_PER_NEURON
    }
    card = {"dHead": models.model_card(WITH_MLPS)["sizes"]["d_head"], "addsPositions": True}
    card |= {"norm": "LN", "eps": 1e-5, "act": "gelu"}
    weights = base64.b64encode(save(tensors)).decode()
    return {"name": WITH_MLPS, "card": card, "weights": weights, "sums": sums}


def births() -> dict[str, list]:
    """The steps at which induction heads formed in stored runs, by the percentage of rows with repeats."""
    return stored("induction", "births.json")


@cache
def presets() -> dict[str, dict]:
    """The presets by their ids, from the part of `presets.js` that is JSON."""
    text = (bundle.SOURCES / "presets.js").read_text("utf-8")
    return {one["id"]: one for one in json.loads(text[text.index("= [") + 2 : text.rindex(";")])}
