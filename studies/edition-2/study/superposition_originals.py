"""Train the original skip-trigram models that ship with the package, and judge each of them.

    python -m tools superposition-originals --out data/superposition

For 2 heads / 3 trigrams, 3 / 4 and 4 / 5: 48 models each, of the smallest, which learn less often, 60; Adam, lr 1e-2
with a cosine, 4,000 steps of 200 prompts. Writes `originals.safetensors` (all weights, [seed, ...]) and `originals.csv` (one row a model).
Chunks that are already there are not computed again, so an interrupted run loses at most one chunk.
"""

import argparse
import csv
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from circuitkit.superposition import SkipTrigramTask, ToyModel, head_verdict, load_original
from tools.study.training import train_original

CONFIGS = ((2, 3, 60), (3, 4, 48), (4, 5, 48))  # heads, trigrams, seeds: 24 and more from seed 12 on have learnt all
NAMES = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
CHUNK = 12


def judge(model: ToyModel) -> dict:
    task = model.task
    tokens = task.sample(20_000, 7)
    logits = model.logits(tokens)[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    out = {"loss": round(float(loss), 4), "bayes_loss": round(task.bayes_loss, 4)}
    for form, name in (("post", "post"), ("strict", "argmax"), ("odds", "odds")):
        verdict = head_verdict(model, task, name)
        out |= {
            f"{form}_success": int(verdict.success),
            f"{form}_carried": int(verdict.carries.any(0).sum()),
            f"{form}_distributed": len(verdict.distributed),
            f"{form}_learnt": int(verdict.is_learnt.sum()),
        }
        if form == "strict":
            rates = {"learnt_rate": round(float(verdict.learnt.min()), 4), "quiet_rate": round(float(verdict.quiet.min()), 4)}
    return out | rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--judge", action="store_true", help="judge the shipped originals again, train none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.judge:
        return write(args.out, [(h, t, seed, load_original(h, t, seed)) for h, t, n in CONFIGS for seed in range(n)])
    (args.out / "chunks").mkdir(parents=True, exist_ok=True)
    weights = {}
    for heads, trigrams, n in CONFIGS:
        config, task, parts = f"{heads}H{trigrams}T", SkipTrigramTask(trigrams), []
        for first in range(0, n, CHUNK):
            seeds = range(first, min(first + CHUNK, n))
            path = args.out / "chunks" / f"{config}-{seeds.start}-{seeds.stop}-{args.steps}.safetensors"
            if not path.exists():
                start = time.process_time()
                models = train_original(task, heads, seeds=seeds, steps=args.steps)
                parts_now = {name: torch.stack([getattr(m.heads, name) for m in models]) for name in NAMES}
                save_file(parts_now, path.with_suffix(".part"))
                path.with_suffix(".part").rename(path)
                print(f"{path.name}: {time.process_time() - start:.0f} CPU s", flush=True)
            parts.append(load_file(path))
        for name in NAMES:
            weights[f"{config}/{name}"] = torch.cat([part[name] for part in parts])
    save_file(weights, args.out / "originals.safetensors")
    from circuitkit._heads import Heads

    made = []
    for heads, trigrams, n in CONFIGS:
        config, task = f"{heads}H{trigrams}T", SkipTrigramTask(trigrams)
        eye = torch.eye(task.d_vocab)
        for seed in range(n):
            stack = Heads(tuple(f"L0H{h}" for h in range(heads)), **{n: weights[f"{config}/{n}"][seed] for n in NAMES})
            made.append((heads, trigrams, seed, ToyModel(stack, task, eye, eye)))
    write(args.out, made)


def write(folder: Path, made: list[tuple[int, int, int, ToyModel]]) -> None:
    rows = [{"config": f"{h}H{t}T", "seed": seed, **judge(model)} for h, t, seed, model in made]
    with (folder / "originals.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()
