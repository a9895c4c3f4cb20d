"""Does the increase of sharing with the rank come from models that guess and correct?

python -m studies.guess_heads

The plan was committed before the run; its words were made plainer afterwards. At rank 5 more of the learned rules are shared than at rank 1. Is this because models of rank 5 guess and correct? In the
construction of two heads for any number of rules, one head *guesses*: it completes the rule with any set of the other heads, but it also completes it without a source. Another head corrects it. For five rules the guessing head needs rank 5, so the construction is impossible at rank 1.

* Primary measure: the share of the shared rules that have a guessing head, at rank 5. Control: the same at rank 1.
* Decision: guessing heads explain the increase if the learned rules that are shared and have *no* guessing head are no larger a share at rank 5 than at rank 1.
* Unit of replication: the model. Intervals are a 95% bootstrap over models.
* Grid: five rules, 4 and 5 heads, ranks 1, 2, 3 and 5, six seeds each, with the recipe and the seeds of `causes.py`; criterion: log-odds. No setting is added afterwards.

About three minutes on one core. Writes `guess_heads.csv`, one row a model.
"""

import torch

from circuitkit.superposition.verdict import THRESHOLD
from circuitkit_book.superposition_task import SkipTrigramTask, trigram_verdict
from studies.causes import ROWS, SCHEDULE, SEEDS
from studies.count_tables.originals import train_originals
from studies.sharing import write_table


def main() -> None:
    torch.set_num_threads(1)
    rows, task = [], SkipTrigramTask(5)
    recipe = SCHEDULE.but(alpha=0.0, power=0.6)
    for heads in (4, 5):
        for d_head in (1, 2, 3, 5):
            for seed, model in enumerate(train_originals(task, heads, d_head, recipe, seeds=SEEDS)):
                verdict = trigram_verdict(model, "odds", rows=ROWS)
                shared = verdict.is_learnt & ~verdict.carries.any(0)
                guessed = (verdict.carried >= THRESHOLD).any(0)
                row = {"heads": heads, "d_head": d_head, "seed": seed}
                row |= {"learnt": int(verdict.is_learnt.sum()), "shared": int(shared.sum())}
                rows.append(row | {"guess_head": int((shared & guessed).sum())})
    write_table("guess_heads.csv", rows)


if __name__ == "__main__":
    main()
