"""Gated blocks on the two models that the post's authors made by hand.

python -m studies.published_by_hand

The weights are public (appendix D; `*_MANUAL.st` in the repository cmathw/gated-attn) and typed in
`circuitkit_book.claims.gated`. The recipe is `GATES`, eight runs each. Writes `by_hand.csv`, one row a
run. About a minute on one core.
"""

import torch

from circuitkit.superposition import GATES, with_gated_layer
from circuitkit_book.claims.gated import FIVE_BY_HAND, published_by_hand
from circuitkit_book.superposition_task import trigram_verdict
from studies.count_tables.tables import train_by_counts
from studies.sharing import write_table


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for n_heads, n_trigrams, served in ((2, 3, [(1, 3), (2, 3)]), (4, 5, FIVE_BY_HAND)):
        model = published_by_hand(n_trigrams, served)
        runs = train_by_counts(model, GATES, inits=8, seed=0)
        for run, block in enumerate(runs.blocks):
            gated = with_gated_layer(model, 0, block)
            strict, post = (trigram_verdict(gated, form=form) for form in ("argmax", "post"))
            row = {"heads": n_heads, "trigrams": n_trigrams, "run": run}
            row |= {"chosen": int(run == runs.best), "fvu": round(runs.unexplained[run], 4)}
            rows.append({**row, "strict": int(strict.success), "post": int(post.success)})
    write_table("by_hand.csv", rows)


if __name__ == "__main__":
    main()
