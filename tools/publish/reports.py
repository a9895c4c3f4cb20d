"""Write the reports of the shipped models that the book shows.

    python -m tools reports

Each report is one page and one table in `book/_static/reports`. The reports of SmolLM2 and MiniLM were made in edition 2
(`studies/edition-2`).
"""

from pathlib import Path

import circuitkit

SHOWN = Path(__file__).resolve().parents[2] / "book/_static/reports"


def main() -> None:
    for name in circuitkit.list_models():
        print(repr(circuitkit.report(name, SHOWN / f"{name}.html")))
