"""Train gated blocks at the post's full schedule: 100,000 steps of 1,000 prompts for each of its three models.

    python scripts/superposition_post.py --out data/superposition

The original of each configuration is the first stored one that has learnt every trigram and carries at least one in no
single head (post's form). Writes `post.csv`: one row for each configuration, value bias and checkpoint. About 12 minutes
of one core for the three; `--value-bias none` closes the loophole at the same settings, `--steps 20000` is shorter.
"""

import argparse
import csv
import json
import time
from pathlib import Path

import torch

from circuitkit.superposition import head_verdict, load_original, post_recipe, sweep
from circuitkit.superposition._block import GatedBlock
from circuitkit.superposition._train import _Data, _finish, optimise, run_seed, stack_parameters

MARKS = (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


def first_original(table: Path, config: str) -> int:
    for row in csv.DictReader(table.open()):
        if row["config"] == config and row["strict_learnt"] == config[2] and int(row["post_distributed"]) > 0:
            return int(row["seed"])
    raise SystemExit(f"no stored {config} original has learnt every trigram with one of them in no single head")


def train(heads: int, trigrams: int, original: int, value_bias: str, steps: int, init: int) -> list[dict]:
    torch.set_num_threads(1)
    model = load_original(heads, trigrams, original)
    recipe = post_recipe(heads).but(value_bias=value_bias, steps=steps)
    data = _Data(model, recipe, run_seed(0, 10_000))
    block = GatedBlock(recipe, heads, model.heads.d_model, target_rms=data.rms, seed=run_seed(init, 0))
    p, rows, start = stack_parameters([block], recipe), [], time.process_time()

    def look(step: int, _: int) -> None:
        if step not in MARKS and step != steps:
            return
        runs = _finish(model, recipe, [block], p, data)
        post, strict = (head_verdict(runs, model.task, strict=form) for form in (False, True))
        rows.append({
            "step": step, "cpu_seconds": round(time.process_time() - start), "fvu": runs.fvu[0],
            "penalty": runs.penalty[0], "largest_value_bias": runs.value_bias[0], "mean_gate": runs.mean_gate[0],
            "learnt": int((strict.learnt >= 0.99).sum()), "quiet": int((strict.quiet >= 0.99).sum()),
            "post_carried": int(post.carries.any(0).sum()), "strict_carried": int(strict.carries.any(0).sum()),
            "least_quiet": float(strict.quiet.min()),
        })  # fmt: skip

    optimise(recipe, p, lambda step: data.loss(p, step, recipe.alpha), look)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--value-bias", choices=("free", "none"), default="free")
    parser.add_argument("--inits", type=int, default=1)
    parser.add_argument("--name", default="post")
    args = parser.parse_args()
    settings = [
        {"heads": h, "trigrams": t, "original": first_original(args.out / "originals.csv", f"{h}H{t}T"),
         "value_bias": args.value_bias, "steps": args.steps, "init": init}
        for init in range(args.inits) for h, t in ((2, 3), (3, 4), (4, 5))
    ]  # fmt: skip
    rows = sweep(train, settings, args.out / f"{args.name}.csv")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
