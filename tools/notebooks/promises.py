"""How long a page takes: minutes to read, counted from its text, and the promise in its **Time** line.

    python -m tools promises        what each notebook promises, beside the counted minutes

Counted: words of prose at 130 a minute, which is reading with care; a displayed formula as 20 s more, a line of code as 4 s, a
figure as 45 s. Exercises and folded answers are left out: exercises state minutes of their own. The setup cell too.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import nbformat

ROOT = Path(__file__).resolve().parents[2]
WORDS_A_MINUTE, FORMULA_SECONDS, CODE_LINE_SECONDS, FIGURE_SECONDS = 130, 20, 4, 45
FIGURE = re.compile(r"<figure\b|<img\b")
PROMISE = re.compile(
    r"\*\*Time\*\*: about (\d+) minutes to read, (\d+) seconds to run on two processor cores\."
)


class Promise(NamedTuple):
    """What the head of a notebook says."""

    minutes: int
    seconds: int


def promise(path: Path) -> Promise | None:
    """The promise of a notebook, or `None` when it makes none; raises when it makes two, or one in other words."""
    text = "\n".join(
        cell.source
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "markdown"
    )
    said, read = text.count("**Time**"), PROMISE.findall(text)
    if said != len(read) or said > 1:
        raise ValueError(
            f"{path.name} says **Time** {said} times, of which {len(read)} can be read; expected at most one line "
            "'**Time**: about 40 minutes to read, 30 seconds to run on two processor cores.'"
        )
    return Promise(*map(int, read[0])) if read else None


def reading_minutes(path: Path) -> float:
    """Minutes to read a notebook, from its words, formulas, code lines and figures."""
    words = formulas = lines = figures = 0
    skipping = False
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            text = re.sub(r"<details.*?</details>", "", cell.source, flags=re.S)
            kept = []
            for part in re.split(r"(?m)^(?=## )", text):
                if part.startswith("## "):
                    skipping = part.startswith("## Exercises")
                kept += [] if skipping else [part]
            text = "".join(kept)
            formulas += len(re.findall(r"\$\$.+?\$\$", text, re.S))
            words += len(
                re.findall(r"\w[\w'’-]*", re.sub(r"\$\$.+?\$\$|\]\([^)]*\)", " ", text, flags=re.S))
            )
        elif not skipping and "hide-cell" not in cell.metadata.get("tags", []):
            lines += len(cell.source.splitlines())
            figures += sum(is_figure(output) for output in cell.outputs)
    seconds = words / WORDS_A_MINUTE * 60 + formulas * FORMULA_SECONDS
    return (seconds + lines * CODE_LINE_SECONDS + figures * FIGURE_SECONDS) / 60


def is_figure(output) -> bool:
    data = output.get("data", {})
    return any(kind.startswith("image/") for kind in data) or bool(
        FIGURE.search("".join(data.get("text/html", "")))
    )


def notebooks(root: Path = ROOT) -> list[Path]:
    """The notebooks that state their time at their head: the chapters, in reading order, and the pages about shapes,
    fine print and models."""
    names = [
        "conventions.ipynb",
        *sorted(path.name for path in (root / "book").glob("[0-9][0-9]-*.ipynb")),
    ]
    names += [
        "conversion-fine-print.ipynb",
        "superposition-fine-print.ipynb",
        "shipped-models.ipynb",
    ]
    return [root / "book" / name for name in names]


def main() -> int:
    for path in notebooks():
        print(f"{path.name}: {reading_minutes(path):.0f} minutes counted; promise: {promise(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
