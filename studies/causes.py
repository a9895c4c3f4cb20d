"""What sharing across heads depends on: rank, number of heads, number of rules, a penalty on writing.

python -m studies.causes

Trains models of the skip-trigram task on a grid, six seeds for each setting, and judges each in
log-odds and by the largest logit. Then the same with a penalty on what heads write,
`price * (sum_h |o_h|^power)^(1 / power)`: with power 0.6 two heads that share a direction pay more than
one, with power 1 they pay the same. Writes `causes.csv`, one row a model: its loss above that of the
exact answer on the same prompts, and how many of its learnt rules no head carries alone. About ten
minutes on one core.
"""

import math

import torch

from circuitkit.superposition.block import Recipe
from circuitkit_book.superposition_task import SkipTrigramTask, trigram_verdict
from studies.count_tables.originals import train_originals
from studies.sharing import write_table

SEEDS, ROWS = 6, 150
SCHEDULE = Recipe(
    lr=1e-2, lr_warmup=0.02, cosine=True, steps=2000, batch=100, n_prompts=20_000, alpha_warmup=0.5
)
GRID = [
    {"trigrams": trigrams, "heads": heads, "d_head": d_head, "price": 0.0, "power": 0.6}
    for trigrams in (3, 5, 8)
    for heads in (2, 3, 4, 5, 6)
    for d_head in (1, 2, 3, 5)
]
# number of heads, price, power; five rules, heads of rank 5
PRICED = [(6, price, 0.6) for price in (0.01, 0.03, 0.003, 0.06)]
PRICED += [(6, 0.03, 1.0), (4, 0.03, 0.6)]
PRICED += [(6, price, 0.6) for price in (0.02, 0.04, 0.035)]
PRICED += [(heads, 0.03, 0.6) for heads in (3, 5, 8)]


def judge(trigrams: int, heads: int, d_head: int, price: float, power: float) -> list[dict]:
    """Train the models of one setting, and judge each of them in both ways."""
    task = SkipTrigramTask(trigrams)
    tokens = task.sample(10_000, 7)
    states = task.states(tokens)[:, :-1]
    n_likely = {0: task.d_vocab, 1: task.d_vocab - 1}  # tokens that may follow; only one if forced
    shares = {state: float((states == state).double().mean()) for state in n_likely}
    least = sum(shares[state] * math.log(n_likely[state]) for state in n_likely)
    rows = []
    recipe = SCHEDULE.but(alpha=price, power=power)
    for seed, model in enumerate(train_originals(task, heads, d_head, recipe, seeds=SEEDS)):
        logits = model(tokens)[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        odds, argmax = (trigram_verdict(model, form, rows=ROWS) for form in ("odds", "argmax"))
        rows.append(
            {
                "seed": seed,
                "above_bayes": round(float(loss) - least, 4),
                "learnt": int(odds.is_learnt.sum()),
                "shared": len(odds.superposed),
                "learnt_argmax": int(argmax.is_learnt.sum()),
                "shared_argmax": len(argmax.superposed),
                "quiet_argmax": round(float(argmax.quiet.min()), 3),
                "worst_gain": " ".join(f"{gain:.2f}" for gain in odds.gain.amax(0).tolist()),
            }
        )
    return rows


def main() -> None:
    torch.set_num_threads(1)
    names = ("heads", "price", "power")
    priced = [{"trigrams": 5, "d_head": 5} | dict(zip(names, row, strict=True)) for row in PRICED]
    rows = []
    for setting in [*GRID, *priced]:
        ordered = {name: setting[name] for name in GRID[0]}
        rows += [ordered | row for row in judge(**setting)]
    write_table("causes.csv", rows)


if __name__ == "__main__":
    main()
