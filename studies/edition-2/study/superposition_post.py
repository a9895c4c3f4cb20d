"""Train gated blocks at the post's full schedule: 100,000 steps of 1,000 prompts for each of its three models.

    python -m tools superposition-post --out data/superposition
    python -m tools superposition-post --inits 8 --originals 2 --upto 5000

Originals of a configuration are the first stored ones that have learnt every trigram and carry at least one in no single
head (post's form). Writes `post.csv`: a row for each block and checkpoint. About 12 minutes of one core for one block of
each configuration to the end; `--value-bias none` closes the loophole at the same settings. Initialisations are trained
side by side. Checkpoints hold the optimiser, so an interrupted run goes on from the last one and gives the same numbers.
"""

import argparse
import csv
import time
from pathlib import Path

import torch

from circuitkit.superposition import head_verdict, load_original, post_recipe
from circuitkit.superposition._train import Training, run_seed

MARKS = (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
KEY = ("heads", "original", "value_bias", "init", "step")


def originals(table: Path, config: str, n: int) -> list[int]:
    good = [
        int(row["seed"])
        for row in csv.DictReader(table.open())
        if row["config"] == config and row["strict_learnt"] == config[2] and int(row["post_distributed"]) > 0
    ]
    if len(good) < n:
        raise SystemExit(f"only {len(good)} stored {config} originals have learnt every trigram with one of them in no single head")
    return good[:n]


def to_mark(heads: int, trigrams: int, original: int, value_bias: str, inits: int, mark: int, folder: Path) -> list[dict]:
    """Train on to step `mark` from the last checkpoint and judge the blocks there."""
    model = load_original(heads, trigrams, original)
    recipe = post_recipe(heads).but(value_bias=value_bias)
    training = Training(model, recipe, [run_seed(init, 0) for init in range(inits)], run_seed(0, 10_000))
    p = training.p
    adam = torch.optim.Adam([value for value in p.values() if value.requires_grad], lr=recipe.lr, fused=True)
    path = folder / f"{heads}H{trigrams}T-{original}-{value_bias}-{inits}.pt"
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
    runs, rows = training.finished(), []
    for init, made in enumerate(runs.models):
        strict, post = (head_verdict(made, model.task, form) for form in ("argmax", "post"))
        rows.append({
            "heads": heads, "trigrams": trigrams, "original": original, "value_bias": value_bias, "init": init, "step": mark,
            "cpu_seconds": round(seconds / inits), "fvu": round(runs.fvu[init], 4), "penalty": round(runs.penalty[init], 5),
            "largest_value_bias": round(runs.value_bias[init], 2), "mean_gate": round(runs.mean_gate[init], 4),
            "learnt": int((strict.learnt >= 0.99).sum()), "quiet": int((strict.quiet >= 0.99).sum()),
            "post_carried": int(post.carries.any(0).sum()), "strict_carried": int(strict.carries.any(0).sum()),
            "least_quiet": round(float(strict.quiet.min()), 4),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    parser.add_argument("--value-bias", choices=("free", "none"), nargs="+", default=["free"])
    parser.add_argument("--inits", type=int, default=1)
    parser.add_argument("--originals", type=int, default=1)
    parser.add_argument("--upto", type=int, default=100_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder, table = args.out / "post", args.out / "post.csv"
    folder.mkdir(parents=True, exist_ok=True)
    rows = {tuple(row[name] for name in KEY): row for row in csv.DictReader(table.open())} if table.exists() else {}
    plan = [
        (mark, heads, trigrams, original, value_bias)
        for value_bias in args.value_bias
        for mark in MARKS
        if mark <= args.upto
        for heads, trigrams in ((2, 3), (3, 4), (4, 5))
        for original in originals(args.out / "originals.csv", f"{heads}H{trigrams}T", args.originals)
    ]
    for mark, heads, trigrams, original, value_bias in plan:
        if all((str(heads), str(original), value_bias, str(init), str(mark)) in rows for init in range(args.inits)):
            continue
        for row in to_mark(heads, trigrams, original, value_bias, args.inits, mark, folder):
            row = {name: str(value) for name, value in row.items()}
            rows.setdefault(tuple(row[name] for name in KEY), row)
            print(row, flush=True)
        with (args.out / "post.new").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writeheader()
            order = lambda r: (r["value_bias"], int(r["heads"]), int(r["original"]), int(r["init"]), int(r["step"]))  # noqa: E731
            writer.writerows(sorted(rows.values(), key=order))
        (args.out / "post.new").rename(table)


if __name__ == "__main__":
    main()
