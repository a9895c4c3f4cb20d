"""The reports that the book shows: of the shipped models, and of two pretrained ones whose weights do not ship.

    python -m tools reports                    the four shipped models, a minute
    python -m tools reports smollm2-135m minilm  of these, whose weights `make real-models` fetches

Each is written into `book/_static/reports` as one page and one table. A stopped run goes on where it was: what is done lies
under `data/reports`, which is no part of the repository.
"""

import argparse
import shutil
from pathlib import Path

import torch

import circuitkit
from tools.study import real_conversion, real_induction

ROOT = Path(__file__).resolve().parents[2]
KEPT, SHOWN = ROOT / "data" / "reports", ROOT / "book" / "_static" / "reports"

REAL = {
    "smollm2-135m": lambda: str(real_induction.convert(real_induction.FOLDER)),
    "minilm": lambda: minilm(),
}


def minilm():
    encoder = real_conversion.load(real_conversion.fetch(real_conversion.FOLDER))[0]
    encoder.cfg.model_name = "all-MiniLM-L6-v2"
    return encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names or folders; left out: the shipped models")
    torch.set_num_threads(1)
    for place in (KEPT, SHOWN):
        place.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().models or circuitkit.list_models():
        made = circuitkit.report(REAL[name]() if name in REAL else name, KEPT / f"{name}.html")
        for kind in ("html", "csv"):
            shutil.copy(KEPT / f"{name}.{kind}", SHOWN)
        print(repr(made))


if __name__ == "__main__":
    main()
