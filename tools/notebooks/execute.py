"""Execute the book's notebooks and store their outputs: the only way outputs are written.

    python -m tools execute                     every notebook under book/
    python -m tools execute book/1-*/*.ipynb    these

Each notebook runs in a new kernel of this Python, in an empty folder, with one thread and no access to model hubs. The
stored file depends only on the sources: cell ids follow the position, counts run from 1, no times are stored.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

ROOT = Path(__file__).resolve().parents[2]
CELL_METADATA = {"tags", "jupyter"}
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "CIRCUITKIT_STILL": "1",
}


class ThisPython(AsyncKernelManager):
    """A kernel of the Python that runs this script, whatever other kernels are called python3."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


def notebooks(root: Path = ROOT) -> list[Path]:
    """Every notebook of the book: those in the folders of the chapters, and those that belong to no chapter."""
    book = root / "book"
    return sorted(book.glob("[1-9]-*/*.ipynb")) + sorted(book.glob("*.ipynb"))


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Remove whatever differs between two runs or two editors."""
    for position, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{position:02d}"
        for key in set(cell.metadata) - CELL_METADATA:
            del cell.metadata[key]
    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5


def execute(path: Path) -> str:
    """Run a notebook from the top and return the text to store; raises when a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(
            notebook,
            kernel_manager_class=ThisPython,
            timeout=120,  # seconds for one cell
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": empty}},
            extra_arguments=["--log-level=40"],
        )
        client.execute(env=os.environ | ENVIRONMENT)
    normalise(notebook)
    return nbformat.writes(notebook) + "\n"


def main() -> int:
    failed = False
    for path in [Path(name) for name in sys.argv[1:]] or notebooks():
        start = time.perf_counter()
        try:
            text = execute(path)
        except (CellExecutionError, CellTimeoutError) as error:
            print(f"{path.name}: failed, nothing written\n{error}")
            failed = True
            continue
        state = "unchanged" if text == path.read_text("utf-8") else "written"
        path.write_text(text, "utf-8")
        print(f"{path.name}: {state}, {time.perf_counter() - start:.1f} s", flush=True)
    return int(failed)
