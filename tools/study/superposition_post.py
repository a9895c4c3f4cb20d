"""Train gated blocks at the post's full schedule: 100,000 steps of 1,000 prompts for each of its three models.

    python -m tools superposition-post --out data/superposition

The original of each configuration is the first stored one that has learnt every trigram and carries at least one in no
single head (post's form). Writes `post.csv`: one row for each configuration, value bias and checkpoint. About 12 minutes
of one core for the three; `--value-bias none` closes the loophole at the same settings. Checkpoints hold the optimiser,
so an interrupted run goes on from the last one and gives the same numbers.
"""

import argparse
import csv
import time
from pathlib import Path

import torch

from circuitkit.superposition import head_verdict, load_original, post_recipe
from circuitkit.superposition._train import Training, run_seed

MARKS = (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


def first_original(table: Path, config: str) -> int:
    for row in csv.DictReader(table.open()):
        if row["config"] == config and row["strict_learnt"] == config[2] and int(row["post_distributed"]) > 0:
            return int(row["seed"])
    raise SystemExit(f"no stored {config} original has learnt every trigram with one of them in no single head")


def to_mark(heads: int, trigrams: int, original: int, value_bias: str, init: int, mark: int, folder: Path) -> dict:
    """Train on to step `mark` from the last checkpoint and judge the block there."""
    model = load_original(heads, trigrams, original)
    recipe = post_recipe(heads).but(value_bias=value_bias)
    training = Training(model, recipe, [run_seed(init, 0)], run_seed(0, 10_000))
    p = training.p
    adam = torch.optim.Adam([value for value in p.values() if value.requires_grad], lr=recipe.lr, fused=True)
    path = folder / f"{heads}H{trigrams}T-{value_bias}-{init}.pt"
    done = seconds = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        done, seconds = saved["step"], saved["seconds"]
        adam.load_state_dict(saved["adam"])
        with torch.no_grad():
            for name, value in p.items():
                value.copy_(saved["p"][name])
    start = time.process_time()
    for step in range(done, mark):
        adam.zero_grad(set_to_none=True)
        training.loss(step).sum().backward()
        adam.step()
    seconds += time.process_time() - start
    state = {"step": mark, "seconds": seconds, "p": {k: v.detach() for k, v in p.items()}, "adam": adam.state_dict()}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    runs = training.finished()
    row = {
        "heads": heads, "trigrams": trigrams, "original": original, "value_bias": value_bias, "init": init, "step": mark,
        "cpu_seconds": round(seconds), "fvu": round(runs.fvu[0], 4), "penalty": round(runs.penalty[0], 5),
        "largest_value_bias": round(runs.value_bias[0], 2), "mean_gate": round(runs.mean_gate[0], 4),
    }  # fmt: skip
    strict, post = (head_verdict(runs, model.task, form) for form in ("argmax", "post"))
    return row | {
        "learnt": int((strict.learnt >= 0.99).sum()), "quiet": int((strict.quiet >= 0.99).sum()),
        "post_carried": int(post.carries.any(0).sum()), "strict_carried": int(strict.carries.any(0).sum()),
        "least_quiet": round(float(strict.quiet.min()), 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    parser.add_argument("--value-bias", choices=("free", "none"), nargs="+", default=["free", "none"])
    parser.add_argument("--upto", type=int, default=100_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder, table = args.out / "post", args.out / "post.csv"
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(csv.DictReader(table.open())) if table.exists() else []
    for value_bias in args.value_bias:
        for mark in (m for m in MARKS if m <= args.upto):
            for heads, trigrams in ((2, 3), (3, 4), (4, 5)):
                key = (str(heads), value_bias, str(mark))
                if any((row["heads"], row["value_bias"], row["step"]) == key for row in rows):
                    continue
                original = first_original(args.out / "originals.csv", f"{heads}H{trigrams}T")
                row = to_mark(heads, trigrams, original, value_bias, 0, mark, folder)
                rows.append({name: str(value) for name, value in row.items()})
                print(row, flush=True)
                with (args.out / "post.new").open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(sorted(rows, key=lambda r: (r["value_bias"], int(r["heads"]), int(r["step"]))))
                (args.out / "post.new").rename(table)


if __name__ == "__main__":
    main()
