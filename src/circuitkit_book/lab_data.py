"""The data of the lab in the book's pages: its models, the rows over which it takes means, its settings."""

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
