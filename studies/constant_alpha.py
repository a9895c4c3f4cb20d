"""The gate penalty at a constant weight: more than one strength, on originals that no recipe was tuned on.

python -m studies.constant_alpha

Everything else is as in the recipe `GATES`. Eight originals of each size, four runs on each, trained by
counts of tokens. Writes `constant_alpha.csv`, one row a run. About ten minutes on one core.
"""

import torch

from circuitkit.superposition import GATES, with_gated_layer
from circuitkit_book.superposition_models import load_original
from circuitkit_book.superposition_task import trigram_verdict
from studies.count_tables.tables import train_by_counts
from studies.sharing import SIZES, originals, write_table

ALPHAS = (0.03, 0.1, 0.3, 1.0)
N_ORIGINALS, N_RUNS = 8, 4


def judge(n_heads: int, n_trigrams: int, original: int, alpha: float) -> list[dict]:
    """Train the runs of one original, and judge each of them in both ways."""
    model = load_original(n_heads, n_trigrams, original)
    recipe = GATES.but(alpha=alpha, alpha_warmup=0.0, alpha_tail=0.0)
    runs = train_by_counts(model, recipe, inits=N_RUNS, seed=1000 + original)
    rows = []
    for run, block in enumerate(runs.blocks):
        gated = with_gated_layer(model, 0, block)
        strict, post = (trigram_verdict(gated, form=form) for form in ("argmax", "post"))
        rows.append(
            {
                "heads": n_heads,
                "trigrams": n_trigrams,
                "alpha": alpha,
                "original": original,
                "run": run,
                "chosen": int(run == runs.best),
                "loss": round(runs.loss[run], 4),
                "fvu": round(runs.unexplained[run], 4),
                "learnt": int(strict.is_learnt.sum()),
                "strict": int(strict.success),
                "post": int(post.success),
            }
        )
    return rows


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for size in SIZES:
        for original in originals(*size, N_ORIGINALS):
            for alpha in ALPHAS:
                rows += judge(*size, original, alpha)
    write_table("constant_alpha.csv", rows)


if __name__ == "__main__":
    main()
