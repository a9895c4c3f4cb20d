"""How much the verdict on the trained originals depends on the gain that counts as a prediction.

python -m studies.thresholds

A completion counts as predicted if it is the most likely token and its log-odds exceed those of
guessing by a threshold. The negative control stays at ln 2. Writes `thresholds.csv`, one row for each
size and threshold. About two minutes on one core.
"""

import math

import torch

from circuitkit.superposition import verdict as judging
from circuitkit_book.stored_tables import load_results
from circuitkit_book.superposition_models import load_original
from circuitkit_book.superposition_task import trigram_verdict
from studies.sharing import SIZES, write_table

THRESHOLDS = (0.5, math.log(2), 1.0, 1.3)


def judge(model, threshold: float) -> judging.Verdict:
    """The verdict in log-odds with another threshold."""
    judging.LEAST_GAIN = threshold
    return trigram_verdict(model)


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for n_heads, n_trigrams in SIZES:
        config = f"{n_heads}H{n_trigrams}T"
        seeds = [row["seed"] for row in load_results("originals") if row["config"] == config]
        models = [load_original(n_heads, n_trigrams, seed) for seed in seeds]
        for threshold in THRESHOLDS:
            verdicts = [judge(model, threshold) for model in models]
            learnt = [verdict for verdict in verdicts if verdict.is_learnt.all()]
            rows.append(
                {
                    "heads": n_heads,
                    "trigrams": n_trigrams,
                    "threshold": round(threshold, 3),
                    "models": len(models),
                    "learnt_all": len(learnt),
                    "a_head_for_each": sum(verdict.success for verdict in learnt),
                    "all_shared": sum(len(verdict.superposed) == n_trigrams for verdict in learnt),
                }
            )
    write_table("thresholds.csv", rows)


if __name__ == "__main__":
    main()
