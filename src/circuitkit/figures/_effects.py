"""Effects as a figure: each beside the drawn sets that it is compared with."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from circuitkit._contract import must, public

from ._mark import to_array
from ._picture import check_alt, show
from ._style import PALETTE


def _measured(found: Any) -> Any:
    tables = [to_array(one.values) for one in found.values() if hasattr(one, "values")] if found else []
    right = tables and len(tables) == len(found) and all(t.ndim == 2 and len(t) > 1 and np.isfinite(t).all() for t in tables)
    return bool(right) or "{'eight wires': effect(...)}, each with finite values [set, row], because each is drawn as a row of its own"


@public
@must(_measured)
def effects(found: Mapping[str, Any], *, alt: str, label: str = "") -> None:
    """Draw what `induction.effect` found, a row each: the whole model, the change with its interval, and every drawn set.

    A bar is the whole model, a cross what is left after the change, with the 95 % interval of the change (over rows,
    paired) around it, and a dot each drawn set of the same kind. `label` says what was measured. **Source**: this book.
    """
    import matplotlib.pyplot as plt

    tables, rows = [to_array(one.values) for one in found.values()], np.arange(len(found))
    whole, after = np.array([table[:2].mean(1) for table in tables]).T
    change = [table[1] - table[0] for table in tables]
    margin = [1.96 * one.std(ddof=1) / len(one) ** 0.5 if len(one) > 1 else 0.0 for one in change]
    drawn = [table[2:].mean(1) for table in tables]
    fig, ax = plt.subplots(figsize=(7.4, 1.1 + 0.32 * len(found)))
    ax.scatter(whole, rows, marker="|", s=200, linewidths=2, color="#262626", label="the whole model")
    dots = np.concatenate(drawn)
    if len(dots):
        ax.scatter(dots, np.repeat(rows, [len(one) for one in drawn]), s=16, alpha=0.5, color=PALETTE[0], label="drawn sets")
    ax.errorbar(after, rows, xerr=margin, fmt="none", capsize=3, color=PALETTE[1])
    ax.scatter(after, rows, marker="X", s=60, color=PALETTE[1], zorder=3, label="after the change, 95 %")
    ax.set(yticks=range(len(found)), yticklabels=list(found), ylim=(len(found) - 0.5, -0.5), xlabel=label)
    ax.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    show(fig, alt=check_alt(alt))
