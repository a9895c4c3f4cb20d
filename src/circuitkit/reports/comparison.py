"""Two reports of models with the same heads, line by line: what appears, vanishes, rises or falls."""

import numpy as np
import pandas as pd

from circuitkit.reports.lines import Behaviour
from circuitkit.reports.page import template

KEY = ["part", "name", "measure", "text"]
SHOWN = ["change", *KEY[1:], "value", "value of other", "control", "control of other"]
OTHER = " of other"


def compared(table: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that only one table names, and those whose intervals lie apart."""
    both = table.merge(other, on=KEY, how="outer", suffixes=("", OTHER), sort=False)
    is_named = both["named"].eq(True)
    is_named_by_other = both[f"named{OTHER}"].eq(True)
    cases = {
        "appears": is_named_by_other & ~is_named,
        "vanishes": is_named & ~is_named_by_other,
        "rises": both[f"low{OTHER}"] > both["high"],
        "falls": both[f"high{OTHER}"] < both["low"],
    }
    both["change"] = np.select([*cases.values()], [*cases], default="")
    changed = both[both["change"] != ""]
    changed = changed.assign(
        case=changed["change"].map([*cases].index),
        size=-(changed[f"value{OTHER}"] - changed["value"]).abs(),
    )
    return changed.sort_values(["case", "size"], kind="stable")[SHOWN].reset_index(drop=True)


def require_same_heads(table: pd.DataFrame, other: pd.DataFrame) -> None:
    """Raise a `ValueError` if two reports are about models with other heads."""
    heads, heads_of_other = (
        set(some["name"][some["measure"].isin([*Behaviour])]) for some in (table, other)
    )
    if heads != heads_of_other:
        raise ValueError(
            f"The reports are about models with other heads ({len(heads)} and {len(heads_of_other)} "
            "heads), so their lines do not correspond. Compare checkpoints, fine-tuned or quantized "
            "copies of one model."
        )


def comparison_page(title: str, other: str, changed: pd.DataFrame) -> str:
    """Return a page with the lines that differ."""
    if title == other:
        title, other = f"{title} (first)", f"{title} (second)"
    return template("comparison.html").render(
        title=title,
        other=other,
        rows=changed.to_dict("records"),
        counts=changed["change"].value_counts(),
    )
