"""The first code cell of every notebook: on Colab it installs the library and checks it; anywhere else it does nothing.

    python -m tools setup-cell        write it into every notebook; outputs are not touched

It takes the wheel of its own version: from the folder of the notebook, where a reader may upload it, or else from the
release of that tag at the book's home. While the home is a placeholder it knows the first way only. A wheel runs nothing
while it is installed; before anything is imported, the cell compares the seal of what was installed with its own
(`tools/publish/wheel.py`). When that fails it ends in one sentence with the likely causes.

The cell gives pip `--no-deps`, so pip adds what Colab lacks and cannot change what Colab has; a newer torch or numpy in a
running session would force a restart. Without a resolver nobody would notice a new requirement, so the added packages
have the exact versions of requirements.txt. `make colab-check` tries all of that.
"""

import re
import sys
from pathlib import Path

import nbformat

from tools.notebooks.columns import narrow
from tools.publish.home import ROOT, Home, home

BEGINS = "# On Colab this cell installs the book's library"
LACKING = ("transformer-lens", "circuitsvis", "jaxtyping", "wadler-lindig")
"""What the library needs and Colab does not have."""


def locked(root: Path = ROOT) -> list[str]:
    """The packages that Colab lacks, in the versions of requirements.txt."""
    lock = (root / "requirements.txt").read_text("utf-8")
    versions = {
        name.replace("_", "-"): version
        for name, version in re.findall(r"^([\w.-]+)==([\w.!]+)", lock, re.M)
    }
    if missing := [name for name in LACKING if name not in versions]:
        raise ValueError(f"requirements.txt has no line for {', '.join(missing)}; run `make lock`")
    return [f"{name}=={versions[name]}" for name in LACKING]


def setup_source(here: Home, packages: list[str]) -> str:
    """The source of the cell."""
    if here.public:
        where = f'wheel if os.path.exists(wheel) else "{here.url}/releases/download/{here.tag}/" + wheel'
        causes = (
            "the session has no internet; the book has moved from its address (then upload {wheel} beside this page); or "
            "something else called circuitkit was here first (then restart the session)"
        )
    else:
        where = "wheel"
        causes = (
            "{wheel}, from the book's archive, is not beside this page; it is not of this page's version; or the session "
            "has no internet for the other packages"
        )
    return narrow(f"""\
{BEGINS} and checks that it is the right one; anywhere else it does nothing.
import sys
if "google.colab" in sys.modules:
    import hashlib, importlib.util, os
    from importlib.metadata import distributions, version
    wheel = "{here.wheel}"  # a file beside this page comes first
    where = {where}
    add = "{" ".join(packages)}"
    if importlib.util.find_spec("circuitkit") is None:  # --no-deps: what Colab has stays
        %pip install -q --no-deps {{where}} {{add}}
    files = [f for d in distributions(name="circuitkit-book") if d.version == "{here.version}" for f in d.files or () if f.suffix != ".pyc"]
    found = sorted((str(f), hashlib.sha256(f.read_binary()).hexdigest()) for f in files if ".dist-info/" not in str(f))
    seal = hashlib.sha256(str(found).encode()).hexdigest()
    if seal != "{here.seal}" or not importlib.util.find_spec("transformer_lens"):
        raise ImportError(f"The book's library is not installed, for one of three likely reasons: {causes}.")
    print("python", sys.version.split()[0], *(f"| {{name}} {{version(name)}}" for name in ("torch", "transformer-lens", "circuitkit-book")), "| ready")""")


def with_cell(
    notebook: nbformat.NotebookNode, source: str, name: str = "notebook"
) -> nbformat.NotebookNode:
    """The notebook with this source in its first code cell."""
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    if not first.source.startswith(BEGINS):
        raise ValueError(
            f"{name}: its first code cell does not begin with {BEGINS!r}; add a setup cell there"
        )
    first.source = source
    return notebook


def main(root: Path = ROOT) -> int:
    source = setup_source(home(root), locked(root))
    for path in sorted((root / "book").rglob("*.ipynb")):
        text = (
            nbformat.writes(with_cell(nbformat.read(path, as_version=4), source, path.name)) + "\n"
        )
        if path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"{path.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
