"""The recipe of chapter 5 with its gate penalty and without it, on the same originals and from the same starts.

python -m studies.no_penalty

Eight originals of each size, on which no recipe was tuned, and four runs on each. The recipe is `GATES`,
and `GATES` without its penalty: the gates stay and can be closed, but nothing rewards it. Writes
`no_penalty.csv`, one row a run. About five minutes on one core.
"""

import torch

from circuitkit.superposition import GATES, with_gated_layer
from circuitkit_book.superposition_models import load_original
from circuitkit_book.superposition_task import trigram_verdict
from studies.count_tables.tables import train_by_counts
from studies.sharing import SIZES, originals, write_table

N_ORIGINALS, N_RUNS = 8, 4


def judge(n_heads: int, n_trigrams: int, original: int, penalty: str) -> list[dict]:
    """Train the runs of one original, and judge each of them by both criteria."""
    model = load_original(n_heads, n_trigrams, original)
    recipe = GATES.but(penalty=penalty)
    runs = train_by_counts(model, recipe, inits=N_RUNS, seed=1000 + original)
    rows = []
    for run, block in enumerate(runs.blocks):
        gated = with_gated_layer(model, 0, block)
        strict, post = (trigram_verdict(gated, form=form) for form in ("argmax", "post"))
        row = {"heads": n_heads, "trigrams": n_trigrams, "penalty": penalty}
        row |= {"original": original, "run": run, "chosen": int(run == runs.best)}
        row |= {"fvu": round(runs.unexplained[run], 4), "learnt": int(strict.is_learnt.sum())}
        for name, verdict in (("strict", strict), ("post", post)):
            row |= {
                name: int(verdict.success),
                f"{name}_carried": int(verdict.carries.any(0).sum()),
            }
        rows.append(row)
    return rows


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for size in SIZES:
        for original in originals(*size, N_ORIGINALS):
            for penalty in (GATES.penalty, "none"):
                rows += judge(*size, original, penalty)
    write_table("no_penalty.csv", rows)


if __name__ == "__main__":
    main()
