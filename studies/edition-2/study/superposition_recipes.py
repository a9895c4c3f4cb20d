"""Strict success of two gated-block recipes and their controls, on originals that no recipe was tuned on.

    python -m tools superposition-recipes --out data/superposition

The recipes were fixed on other originals, before the ones used here existed. For each original, 8 initialisations (2
with many heads and with the gates of appendix C) are trained side by side and the one with the lowest loss on fresh
prompts is chosen; every one of them is judged. Writes `recipes.csv`, one row an initialisation. Interrupted, it goes on
where it was. `--jobs 2` uses two cores; a cluster is one line, `with joblib.parallel_config("dask")`, around the call of
`sweep`.
"""

import argparse
from pathlib import Path

from circuitkit.superposition import GATES, LORSA, WRITES, hand_specified, head_verdict, load_original, train_gated
from tools.study.sweeps import sweep

_MANY = LORSA.but(expansion=6, top_k=2)
RECIPES = {
    "writes": WRITES,
    "gates": GATES,
    "writes, 4 x heads": WRITES.but(expansion=4),  # tried after the failures of "writes" on 3H/4T had been seen
    "writes, no gate": WRITES.but(gate="none"),
    "gates, constant alpha": GATES.but(alpha_warmup=0.0, alpha_tail=0.0),
    "gates, free value bias": GATES.but(value_bias="free"),
    "gates, learned scale": GATES.but(output_scale="learned"),
    "gates, hand-made": GATES,
    # six heads for each of the original's were chosen on originals 2 and 3, which are not used here
    "lorsa, 6 x heads": _MANY,
    "lorsa, 6 x heads, price": _MANY.but(penalty="write", alpha=WRITES.alpha),
    **{f"gates, {gate}": GATES.but(gate=gate) for gate in ("relu", "relu_tanh", "binary_ste", "binary")},  # appendix C
    "gates, duplicate": GATES.but(init="duplicate"),
}
SIZES = ((4, 5), (3, 4), (2, 3))
MANY = tuple(f"lorsa, 6 x heads{price}" for price in (", price", ""))
APPENDIX_C = tuple(f"gates, {how}" for how in ("relu", "relu_tanh", "binary_ste", "binary", "duplicate"))
# recipe, heads and trigrams, number of originals
PLAN = (
    ("writes", 3, 4, 24),
    ("writes", 4, 5, 24),
    ("gates", 4, 5, 24),
    *(("writes, 4 x heads", *size, 24) for size in SIZES),
    ("gates", 3, 4, 24),
    ("writes", 2, 3, 24),
    ("gates", 2, 3, 24),
    *(("gates, hand-made", *size, 1) for size in SIZES),
    *((recipe, *size, 24) for recipe in MANY for size in SIZES),
    *((recipe, *size, 24) for recipe in ("writes, no gate", "gates, learned scale") for size in SIZES),
    *((recipe, *size, 24) for recipe in ("gates, free value bias", "gates, constant alpha") for size in SIZES),
    *((recipe, *size, 24) for recipe in APPENDIX_C for size in SIZES),
)


def judge(recipe: str, heads: int, trigrams: int, original: int) -> list[dict]:
    import torch

    torch.set_num_threads(1)
    made = "hand-made" in recipe
    model = hand_specified(heads, trigrams) if made else load_original(heads, trigrams, original)
    runs = train_gated(model, RECIPES[recipe], inits=2 if recipe in (*MANY, *APPENDIX_C) else 8, seed=1000 + original)
    rows = []
    for init, block in enumerate(runs.models):
        strict, post = (head_verdict(block, model.task, form) for form in ("argmax", "post"))
        rows.append({
            "init": init, "chosen": int(init == runs.best), "loss": round(runs.loss[init], 5),
            "fvu": round(runs.fvu[init], 5), "penalty": round(runs.penalty[init], 5),
            "strict": int(strict.success), "exactly_one": int(strict.exactly_one), "post": int(post.success),
            "learnt": len(strict.learnt) - len(strict.not_learnt), "carried": int(strict.carries.any(0).sum()),
            "least_quiet": round(float(strict.quiet.min()), 4),
            "best_carried": " ".join(f"{rate:.3f}" for rate in strict.carried.max(0).values.tolist()),
            "mean_gate": round(runs.mean_gate[init], 4), "largest_value_bias": round(runs.value_bias[init], 3),
        })  # fmt: skip
    return rows


def eligible(table: list[dict], heads: int, trigrams: int, first: int, n: int) -> list[int]:
    """The first `n` originals from seed `first` on that have learnt every trigram."""
    config = f"{heads}H{trigrams}T"
    good = [row["seed"] for row in table if row["config"] == config and row["strict_learnt"] == trigrams]
    return [seed for seed in good if seed >= first][:n]


def store_block(path: Path) -> None:
    """The block of chapter 5's picture: recipe "gates", original 13 of 4H/5T, the chosen one of 8 runs."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    model = load_original(4, 5, 13)
    runs = train_gated(model.to(torch.float64), GATES, inits=8, seed=1)
    assert head_verdict(runs.model, model.task).success
    save_file({name: value.float().contiguous() for name, value in runs.model.block.state_dict().items()}, path)


def main() -> None:
    from circuitkit.superposition import load_results

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=12, help="originals below this seed are for trying things out")
    parser.add_argument("--only", nargs="*", default=[], help="these recipes")
    parser.add_argument("--heads", type=int, nargs="*", default=[2, 3, 4], help="these sizes")
    parser.add_argument("--originals", type=int, default=0, help="so many of each, in place of the numbers of the plan")
    parser.add_argument("--block", action="store_true", help="write block.safetensors and stop")
    args = parser.parse_args()
    if args.block:
        return store_block(args.out / "block.safetensors")
    table = load_results("originals")
    settings = [
        {"recipe": recipe, "heads": heads, "trigrams": trigrams, "original": seed}
        for recipe, heads, trigrams, n in PLAN
        if (not args.only or recipe in args.only) and heads in args.heads
        for seed in (range(n) if "hand-made" in recipe else eligible(table, heads, trigrams, args.first, args.originals or n))
    ]
    sweep(judge, settings, args.out / "recipes.csv", n_jobs=args.jobs)


if __name__ == "__main__":
    main()
