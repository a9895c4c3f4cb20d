"""Execute the book's notebooks and store their outputs: the only way outputs are written.

    python -m tools execute                     every notebook under book/
    python -m tools execute book/01-*.ipynb     these
    python -m tools execute --check             compare with the stored files, write nothing

Each notebook runs in a new kernel of this very Python, in an empty folder, with one thread and no access to model hubs.
What is written depends on nothing but the sources: cell ids follow the position, counts run from 1, no time is kept.
"""

import argparse
import os
import sys
import tempfile
import time
from difflib import unified_diff
from pathlib import Path

import nbformat
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120  # seconds for one cell
KEPT_CELL = {"tags", "mystnb", "circuitkit"}
KEPT_NOTEBOOK = {"circuitkit"}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}


def notebooks(root: Path = ROOT) -> list[Path]:
    """Every notebook of the book, in reading order."""
    return sorted(
        path
        for path in (root / "book").rglob("*.ipynb")
        if not any(part.startswith(".") for part in path.parts)
    )


def normalised(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The same notebook without anything that differs between two runs or two editors."""
    cells = []
    for position, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{position:02d}"
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in KEPT_CELL}
        if cell.cell_type == "code":
            cell.outputs = merged(cell.outputs)
        cells.append(cell)
    notebook.cells = cells
    notebook.metadata = {
        key: value for key, value in notebook.metadata.items() if key in KEPT_NOTEBOOK
    } | {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return nbformat.from_dict(notebook)


def merged(outputs: list) -> list:
    """Consecutive pieces of one stream as one output: how a kernel cuts them is chance."""
    kept: list = []
    for output in outputs:
        output.pop("transient", None)
        previous = kept[-1] if kept else None
        if (
            previous
            and output.output_type == "stream"
            and previous.output_type == "stream"
            and previous.name == output.name
        ):
            previous.text += output.text
        else:
            kept.append(output)
    return kept


class ThisPython(AsyncKernelManager):
    """A kernel of the Python that runs this script, whatever other kernels are called python3."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


def execute(
    path: Path, manager: type[AsyncKernelManager] = ThisPython, timeout: int = TIMEOUT
) -> str:
    """Run a notebook from the top and return the text that is to be stored; raises when a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(
            notebook,
            kernel_manager_class=manager,
            timeout=timeout,
            record_timing=False,
            resources={"metadata": {"path": empty}},
            extra_arguments=["--log-level=40"],
        )
        client.execute(env=os.environ | ENVIRONMENT)
    return nbformat.writes(normalised(notebook)) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all of book/ by default")
    parser.add_argument(
        "--check", action="store_true", help="compare with the stored files instead of writing"
    )
    options = parser.parse_args(arguments)
    differ = []
    for path in options.paths or notebooks():
        start = time.perf_counter()
        try:
            text, stored = execute(path), path.read_text("utf-8")
        except (CellExecutionError, CellTimeoutError) as error:
            print(f"{path.name}: FAILED, nothing written\n{error}")
            differ.append(path)
            continue
        same = text == stored
        state = "unchanged" if same else "DIFFERS" if options.check else "written"
        print(
            f"{path.name}: {state}, {time.perf_counter() - start:.1f} s, {len(text) / 1e6:.2f} MB",
            flush=True,
        )
        if not same and options.check:
            differ.append(path)
            lines = unified_diff(
                stored.splitlines(), text.splitlines(), "stored", "fresh", lineterm="", n=1
            )
            print("\n".join(line[:200] for _, line in zip(range(20), lines, strict=False)))
        elif not same:
            path.write_text(text, "utf-8")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
