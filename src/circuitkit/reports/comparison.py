"""Two reports of models with the same heads, line by line: what appears, vanishes, rises or falls."""

import pandas as pd

from circuitkit.reports.lines import Behaviour

KEY = ["part", "name", "measure", "text"]
SHOWN = ["change", *KEY[1:], "value", "value of other", "control", "control of other"]
OTHER = " of other"


def compared(table: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that only one table names, and those whose intervals lie apart."""
    both = table.merge(other, on=KEY, how="outer", suffixes=("", OTHER), sort=False)
    both["size"] = (both[f"value{OTHER}"] - both["value"]).abs()
    both = both.sort_values("size", ascending=False, kind="stable")
    named = both["named"].eq(True)
    named_by_other = both[f"named{OTHER}"].eq(True)
    cases = {
        "appears": named_by_other & ~named,
        "vanishes": named & ~named_by_other,
        "rises": (named == named_by_other) & (both[f"low{OTHER}"] > both["high"]),
        "falls": (named == named_by_other) & (both[f"high{OTHER}"] < both["low"]),
    }
    found = [both[is_case].assign(change=change) for change, is_case in cases.items()]
    return pd.concat(found).reindex(columns=SHOWN).reset_index(drop=True)


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
