"""What does sharing across heads depend on? Rank, number of heads, number of trigrams, or a price on writing.

    python -m tools superposition-causes --out data/superposition

Trains originals of the skip-trigram task on a grid and judges each in log-odds and by argmax. Writes `causes.csv`, one
row a model: its loss above that of the exact answer on the same prompts, and how many of its learnt trigrams no head
carries alone. Then the same with a price on what heads write, `price * (sum_h |o_h|^power)^(1 / power)`: with power 0.6
two heads that share a direction pay more than one, with power 1 they pay the same, which is the control. Interrupted,
it goes on where it was; about a quarter of an hour of one core.
"""

import argparse
import math
from pathlib import Path

from circuitkit.superposition import SkipTrigramTask, head_verdict
from tools.study.sweeps import sweep
from tools.study.training import train_original

SEEDS, STEPS, BATCH, ROWS = 6, 2000, 100, 150
# trigrams, heads, d_head, price on writing, its power
PLAN = (
    *((trigrams, heads, d_head, 0.0, 0.6) for trigrams in (3, 5, 8) for heads in (2, 3, 4, 5, 6) for d_head in (1, 2, 3, 5)),
    *((5, 6, 5, price, 0.6) for price in (0.01, 0.03, 0.003, 0.06)),
    (5, 6, 5, 0.03, 1.0),
    (5, 4, 5, 0.03, 0.6),
    *((5, 6, 5, price, 0.6) for price in (0.02, 0.04, 0.035)),
    *((5, heads, 5, 0.03, 0.6) for heads in (3, 5, 8)),
)


def judge(trigrams: int, heads: int, d_head: int, price: float, power: float) -> list[dict]:
    import torch

    torch.set_num_threads(1)
    task = SkipTrigramTask(trigrams)
    rows = []
    schedule = {"steps": STEPS, "batch": BATCH, "n_prompts": 200 * BATCH}
    tokens = task.sample(10_000, 7)
    idle, pending = (float((task.states(tokens)[:, :-1] == state).double().mean()) for state in (0, 1))
    least = idle * math.log(task.d_vocab) + pending * math.log(task.d_vocab - 1)  # the exact answer, on these prompts
    for seed, model in enumerate(train_original(task, heads, seeds=SEEDS, d_head=d_head, price=price, power=power, **schedule)):
        logits = model.logits(tokens)[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        odds, argmax = (head_verdict(model, task, form, rows=ROWS) for form in ("odds", "argmax"))
        rows.append({
            "seed": seed, "above_bayes": round(float(loss) - least, 4),
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
    parser.add_argument("--priced", action="store_true", help="only those with a price on writing")
    args = parser.parse_args()
    names = ("trigrams", "heads", "d_head", "price", "power")
    sweep(judge, [dict(zip(names, row, strict=True)) for row in PLAN if row[3] or not args.priced], args.out / "causes.csv", n_jobs=args.jobs)


if __name__ == "__main__":
    main()
