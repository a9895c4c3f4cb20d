"""The first code cell of every notebook: it installs the library on Colab and does nothing anywhere else.

    python scripts/setup_cell.py        write it into every notebook of the book, from repository.url in _config.yml

Outputs are not touched: a cell that printed nothing still prints nothing.
"""

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
TAG = "hide-cell"


def setup_source(root: Path = ROOT) -> str:
    """The source of the cell, with the one setting that says where the book lives."""
    config = (root / "_config.yml").read_text("utf-8")
    url = re.search(r"^repository:\n(?:  .*\n)*?  url: (\S+)$", config, re.M)
    branch = re.search(r"^repository:\n(?:  .*\n)*?  branch: (\S+)$", config, re.M)
    if url is None:
        raise ValueError("_config.yml has no repository.url; the setup cells and the Colab buttons are made from it")
    return (
        "# On Colab this cell installs the book's library; anywhere else it does nothing.\n"
        "import importlib.util, sys\n"
        'if "google.colab" in sys.modules and importlib.util.find_spec("circuitkit") is None:\n'
        f'    %pip install -q "circuitkit-book @ git+{url[1]}@{branch[1] if branch else "main"}"'
    )


def main() -> int:
    for path in sorted((ROOT / "book").rglob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        if TAG not in first.metadata.get("tags", []):
            print(f"{path.name}: its first code cell has no tag {TAG!r}; add a setup cell there")
            return 1
        if first.source != setup_source():
            first.source = setup_source()
            path.write_text(nbformat.writes(notebook) + "\n", "utf-8")
            print(f"{path.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
