"""Write the set-up cell, the first code cell of every notebook: on Colab it installs the library.

    python -m tools setup-cell

The wheel may lie in the folder of the notebook (`--find-links .`); otherwise pip takes it from the index. On any other
machine the cell does nothing, and no page shows it.
"""

import tomllib
from pathlib import Path

import nbformat

from tools.notebooks.execute import notebooks

ROOT = Path(__file__).resolve().parents[2]
CELL = """\
import sys

if "google.colab" in sys.modules:
    %pip install -q --find-links . "circuitkit-book[live]=={version}\""""


def source() -> str:
    """The source of the cell for the version in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return CELL.format(version=project["version"])


def main() -> int:
    for path in notebooks():
        notebook = nbformat.read(path, as_version=4)
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        if "google.colab" not in first.source:
            raise ValueError(f"{path.name}: the first code cell is not a set-up cell; add one")
        first.source, first.metadata["tags"] = source(), ["remove-cell"]
        path.write_text(nbformat.writes(notebook) + "\n", "utf-8")
    return 0
