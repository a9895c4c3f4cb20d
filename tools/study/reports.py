"""The reports that the book shows: of the shipped models, and of two pretrained ones whose weights do not ship.

    python -m tools reports                    the four shipped models, a minute
    python -m tools reports NAME=FOLDER [...]  of other models that lie in folders, as `make real-models` fetches them

Each is written into `book/_static/reports` as one page and one table. A stopped run goes on where it was: what is done lies
under `data/reports`, which is no part of the repository.
"""

import argparse
import shutil
from pathlib import Path

import torch

import circuitkit

ROOT = Path(__file__).resolve().parents[2]
KEPT, SHOWN = ROOT / "data" / "reports", ROOT / "book" / "_static" / "reports"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names or folders; left out: the shipped models")
    torch.set_num_threads(1)
    for place in (KEPT, SHOWN):
        place.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().models or circuitkit.list_models():
        short, _, place = name.rpartition("=")
        short = short or Path(name).name
        made = circuitkit.report(place, KEPT / f"{short}.html")
        for kind in ("html", "csv"):
            shutil.copy(KEPT / f"{short}.{kind}", SHOWN)
        print(repr(made))


if __name__ == "__main__":
    main()
