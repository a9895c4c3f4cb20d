"""Choose what ships from the training runs, and write it into the package with hashes and measured figures.

    python -m tools pack --runs data/runs

Reads the corpus, the tokenizer and the runs; writes `src/circuitkit/models/data/`: weights in half precision (of
checkpoints before the last, embeddings in 8 bits), the tokenizer, the held-out text, the sparse unigram and bigram
counts, provenance, and `manifest.json`. Every figure in the manifest is measured on the packed files, loaded the way
a reader loads them.
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

TARGET = Path("src/circuitkit/models/data")
V = 2048

# Steps of the two-layer run that ship: its start, dense through the phase change, and its end.
CHECKPOINTS = {"two-layer": [0, 1000, 3000, 4200, 4600, 4800, 5000, 5100, 5200, 5400, 5700, 6400, 9000, 14000]}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def entry(file: str) -> dict[str, str]:
    (TARGET / file).chmod(0o644)  # safetensors writes files that only their owner may read, and wheels keep that
    return {"file": file, "sha256": sha256(TARGET / file)}


def pack_statistics(tokens: Path) -> None:
    """Counts as compressed sparse rows; columns and counts are unsigned 16-bit numbers in int16 tensors."""
    train = np.load(tokens / "train.npy").astype(np.int64)
    keys, counts = np.unique(train[:-1] * V + train[1:], return_counts=True)
    if counts.max() >= 2**16:
        raise ValueError(f"a bigram occurs {counts.max()} times, which does not fit the 16-bit table")
    unsigned = lambda a: torch.from_numpy(a.astype(np.uint16).view(np.int16).copy())  # noqa: E731
    table = {
        "unigram": torch.from_numpy(np.bincount(train, minlength=V).astype(np.int32)),
        "successors": unsigned(np.bincount(keys // V, minlength=V)),
        "columns": unsigned(keys % V),
        "counts": unsigned(counts),
    }
    save_file(table, TARGET / "statistics.safetensors")


def pack_weights(name: str, run: Path) -> dict:
    """Copy the chosen steps of a run; returns the model's entry in the manifest."""
    recipe = json.loads((run / "recipe.json").read_text())
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = max(row["step"] for row in log)
    files = {}
    for step in sorted({*CHECKPOINTS.get(name, []), last}):
        source = run / "steps" / f"{step:06d}.safetensors"
        if step > last or not source.exists():
            continue
        file = f"{name}.safetensors" if step == last else f"{name}-step{step:05d}.safetensors"
        weights = load_file(source)
        if not recipe["mlp"]:
            weights["W_pos"] = positions(recipe)
        if step != last:
            weights = eight_bit(weights, {"W_E": 1, "W_U": 0})
        save_file(weights, TARGET / file)
        files[str(step)] = entry(file)
    keep = ("n_layers", "mlp", "d_content", "d_pos", "n_heads", "d_head", "d_mlp", "d_vocab", "n_ctx")
    sizes = {"name": name} | {key: recipe[key] for key in keep}
    end = next(row for row in log if row["step"] == last)
    training = {key: recipe[key] for key in ("seed", "steps", "rows", "repeats", "lr_matrix", "lr_embed", "decay")}
    return {"sizes": sizes, "files": files, "training": training | {k: end[k] for k in ("tokens", "cpu_seconds")}}


def eight_bit(weights: dict[str, torch.Tensor], axes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Store the named matrices in 8 bits, one scale for each token: `axes` are the dimensions that are not tokens."""
    out = dict(weights)
    for name, axis in axes.items():
        scale = (weights[name].float().abs().amax(axis, keepdim=True) / 127).half()
        out[name] = (weights[name].float() / scale.float()).round().clamp(-127, 127).to(torch.int8)
        out[f"{name}.scale"] = scale
    return out


def positions(recipe: dict) -> torch.Tensor:
    from tools.train.model import sinusoids

    return sinusoids(recipe["n_ctx"], recipe["d_pos"]).half()


@torch.no_grad()
def measure(name: str, tokens: Path) -> dict:
    """Held-out loss over all held-out text, and the behaviour on repeated rows, of a packed model."""
    from circuitkit.models import load_model
    from tools.train.model import Data, Recipe

    model = load_model(name)
    held = np.load(tokens / "heldout.npy").astype(np.int64)
    width = model.cfg.n_ctx - 1
    rows = torch.from_numpy(held[: len(held) // width * width].reshape(-1, width))
    rows = torch.cat([torch.zeros(len(rows), 1, dtype=rows.dtype), rows], dim=1)
    total, scored = 0.0, 0
    for part in rows.split(64):
        log_p = model(part)[:, :-1].log_softmax(-1).gather(-1, part[:, 1:, None])[..., 0]
        mask = part[:, 1:] != 0
        total, scored = total - log_p[mask].double().sum().item(), scored + int(mask.sum())
    out = {"heldout_loss": round(total / scored, 4), "heldout_tokens": scored}
    _, random, real = Data(tokens, Recipe(n_layers=0, steps=0, repeats=0)).evaluation(n=64, seed=2)
    period = model.cfg.n_ctx // 2 - 1
    for kind, batch in (("random", random), ("real", real)):
        logits, cache = model.run_with_cache(batch)
        nll = -logits[:, :-1].log_softmax(-1).gather(-1, batch[:, 1:, None])[..., 0]
        second = slice(period + 1, 2 * period)
        out[f"{kind}_first"] = round(nll[:, 1:period].mean().item(), 4)
        out[f"{kind}_second"] = round(nll[:, second].mean().item(), 4)
        top1 = logits[:, second].argmax(-1) == batch[:, period + 2 : 2 * period + 1]
        out[f"{kind}_top1"] = round(top1.float().mean().item(), 4)
        for layer in range(model.cfg.n_layers):
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
            matching = pattern.diagonal(1 - period, -2, -1)[..., 2:].mean((0, 2))
            previous = pattern.diagonal(-1, -2, -1).mean((0, 2))
            for head in range(model.cfg.n_heads):
                scores = out.setdefault("heads", {}).setdefault(f"L{layer}H{head}", {})
                scores[f"prefix_matching_{kind}"] = round(matching[head].item(), 4)
                scores[f"previous_token_{kind}"] = round(previous[head].item(), 4)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/corpus"))
    parser.add_argument("--tokens", type=Path, default=Path("data/tokenizer"))
    parser.add_argument("--runs", type=Path, default=Path("data/runs"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    TARGET.mkdir(parents=True, exist_ok=True)
    for old in TARGET.glob("*.safetensors"):
        old.unlink()
    shutil.copy(args.tokens / "tokenizer.json", TARGET / "tokenizer.json")
    shutil.copy(args.corpus / "heldout.jsonl", TARGET / "heldout.jsonl")
    shutil.copy(args.corpus / "corpus-provenance.json", TARGET / "corpus-provenance.json")
    pack_statistics(args.tokens)
    manifest = {
        "tokenizer": entry("tokenizer.json"),
        "heldout": entry("heldout.jsonl"),
        "statistics": entry("statistics.safetensors"),
        "provenance": entry("corpus-provenance.json"),
        "tokens": json.loads((args.tokens / "tokenizer-report.json").read_text()),
        "baselines": json.loads((args.tokens / "baselines.json").read_text()),
        "models": {},
    }
    for name in ("zero-layer", "one-layer", "two-layer", "two-layer-mlp"):
        if (args.runs / name / "log.jsonl").exists():
            manifest["models"][name] = pack_weights(name, args.runs / name)
    write = lambda: (TARGET / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")  # noqa: E731
    write()
    for name, item in manifest["models"].items():
        item["measured"] = measure(name, args.tokens)
        print(name, {k: v for k, v in item["measured"].items() if k != "heads"})
    write()
    size = sum(path.stat().st_size for path in TARGET.iterdir())
    print(f"{size / 1e6:.1f} MB in {len(list(TARGET.iterdir()))} files")


if __name__ == "__main__":
    main()
