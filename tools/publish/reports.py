"""Write the reports of the shipped models that the book shows.

    python -m tools reports

Each report is one page and one table in `book/_static/reports`. A stopped run continues where it was, from `data/reports`,
which is not part of the repository. The reports of SmolLM2 and MiniLM were made in edition 2 (`studies/edition-2`).
"""

import shutil
from pathlib import Path

import circuitkit

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "data/reports"
SHOWN = ROOT / "book/_static/reports"


def main() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    for name in circuitkit.list_models():
        print(repr(circuitkit.report(name, WORK / f"{name}.html")))
        for suffix in ("html", "csv"):
            shutil.copy(WORK / f"{name}.{suffix}", SHOWN)


if __name__ == "__main__":
    main()
