"""What the studies of attention superposition share: the originals that are used, and a table on disk."""

import csv
from pathlib import Path

from circuitkit_book.stored_tables import load_results

DATA = Path(__file__).resolve().parents[1] / "src/circuitkit/data/superposition"
SIZES = ((2, 3), (3, 4), (4, 5))


def originals(n_heads: int, n_trigrams: int, count: int) -> list[int]:
    """The seeds of the first originals, from number 12 on, that learnt every trigram by argmax.

    Numbers 0 to 11 served for tuning the recipes.
    """
    rows = [row for row in load_results("originals") if row["config"] == f"{n_heads}H{n_trigrams}T"]
    able = [row["seed"] for row in rows if row["seed"] >= 12 and row["strict_learnt"] == n_trigrams]
    return able[:count]


def write_table(name: str, rows: list[dict]) -> None:
    """Write a table of results; `python -m tools manifest` then records its hash."""
    with (DATA / name).open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
