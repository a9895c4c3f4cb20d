"""What does sharing across heads depend on? Rank, number of heads, or a price on writing.

    python -m tools superposition-causes --out data/superposition

Trains originals of the skip-trigram task on a grid and judges each in log-odds and by argmax. Writes `causes.csv`, one
row a model: its loss above the least possible one, and how many of its learnt trigrams no head carries alone. One
setting has a price on what heads write. Interrupted, it goes on where it was; about three minutes of one core.
"""

import argparse
from pathlib import Path

from circuitkit.superposition import SkipTrigramTask, head_verdict
from tools.study.sweeps import sweep
from tools.study.training import train_original

SEEDS, STEPS, BATCH, ROWS = 6, 1200, 100, 100
# trigrams, heads, d_head, price on writing
PLAN = (
    *((5, heads, d_head, 0.0) for d_head in (1, 5) for heads in (2, 4, 6)),
    (5, 6, 5, 0.03),
)


def judge(trigrams: int, heads: int, d_head: int, price: float) -> list[dict]:
    import torch

    torch.set_num_threads(1)
    task = SkipTrigramTask(trigrams)
    rows = []
    schedule = {"steps": STEPS, "batch": BATCH, "n_prompts": 200 * BATCH}
    tokens = task.sample(10_000, 7)
    for seed, model in enumerate(train_original(task, heads, seeds=SEEDS, d_head=d_head, price=price, **schedule)):
        logits = model.logits(tokens)[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        odds, argmax = (head_verdict(model, task, form, rows=ROWS) for form in ("odds", "argmax"))
        rows.append({
            "seed": seed, "above_bayes": round(float(loss) - task.bayes_loss, 4),
            "learnt": int(odds.is_learnt.sum()), "shared": len(odds.distributed),
            "learnt_argmax": int(argmax.is_learnt.sum()), "shared_argmax": len(argmax.distributed),
            "quiet_argmax": round(float(argmax.quiet.min()), 3),
            "worst_gain": " ".join(f"{gain:.2f}" for gain in odds.gain.max(0).values.tolist()),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    names = ("trigrams", "heads", "d_head", "price")
    sweep(judge, [dict(zip(names, row, strict=True)) for row in PLAN], args.out / "causes.csv", n_jobs=args.jobs)


if __name__ == "__main__":
    main()
