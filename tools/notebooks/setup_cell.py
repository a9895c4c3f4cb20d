"""The first code cell of every notebook, and the README's Colab links: made from `repository` in _config.yml.

    python -m tools setup-cell              write them
    python -m tools setup-cell --release    first set `repository.branch` to the tag of this version, v0.1.0 for 0.1.0

The cell installs the library on Colab and does nothing, and prints nothing, anywhere else. `repository.branch` is the one
setting that says which version Colab opens and installs: `main`, or for a release the tag of the version in
pyproject.toml. The book's own Colab buttons are made from the same two lines. Outputs are not touched.

The cell gives pip `--no-deps`, so pip adds what Colab lacks and cannot change what Colab has; a newer torch or numpy in a
running session would force a restart. Without a resolver nobody would notice a new requirement, so the added packages
have the exact versions of requirements.txt. `make colab-check` tests both halves of that bargain.
"""

import re
import sys
import tomllib
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
TAG = "hide-cell"
COLAB = "https://colab.research.google.com/github/"
LACKING = ("transformer-lens", "circuitsvis", "jaxtyping", "wadler-lindig")
"""What the library needs and Colab does not have."""
SETTING = re.compile(r"^(repository:\n  url: )(\S+)(\n  branch: )(\S+)$", re.M)
LINKS = re.compile(r"(?<=<!-- colab -->\n).*(?=\n<!-- /colab -->)", re.S)


def repository(root: Path = ROOT) -> tuple[str, str]:
    """The address of the repository, and the branch or tag that readers get."""
    found = SETTING.search((root / "_config.yml").read_text("utf-8"))
    if found is None:
        raise ValueError("_config.yml has no `repository:` with `url` and `branch` below it; the Colab cells need both")
    return found[2], found[4]


def locked(root: Path = ROOT) -> list[str]:
    """The packages that Colab lacks, in the versions of requirements.txt."""
    lock = (root / "requirements.txt").read_text("utf-8")
    versions = {name.replace("_", "-"): version for name, version in re.findall(r"^([\w.-]+)==([\w.!]+)", lock, re.M)}
    if missing := [name for name in LACKING if name not in versions]:
        raise ValueError(f"requirements.txt has no line for {', '.join(missing)}; run `make lock`")
    return [f"{name}=={versions[name]}" for name in LACKING]


def setup_source(root: Path = ROOT) -> str:
    """The source of the cell."""
    url, reference = repository(root)
    return f"""\
# On Colab this cell installs the book's library; anywhere else it does nothing.
import importlib.util, sys
if "google.colab" in sys.modules:
    if importlib.util.find_spec("circuitkit") is None:
        # --no-deps: what Colab lacks is added; what it has, torch and numpy included, stays.
        add = "{" ".join(locked(root))}"
        %pip install -q --no-deps git+{url}@{reference} {{add}}
    from importlib.metadata import version
    import transformer_lens
    parts = ("torch", "transformer-lens", "circuitkit-book")
    print("python", sys.version.split()[0], *(f"| {{part}} {{version(part)}}" for part in parts))
    print("ready")"""


def colab_links(root: Path = ROOT) -> str:
    """One Colab link for each chapter, for the README."""
    url, reference = repository(root)
    where = f"{COLAB}{url.removeprefix('https://github.com/')}/blob/{reference}/book"
    chapters = sorted((root / "book").glob("[0-9]*.ipynb"))
    return " ·\n".join(f"[chapter {int(path.name[:2])}]({where}/{path.name})" for path in chapters)


def version_tag(root: Path = ROOT) -> str:
    """The tag of a release of this version."""
    return "v" + tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def write_notebook(path: Path) -> bool:
    """Put the cell into a notebook; True if that changed it."""
    notebook = nbformat.read(path, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    if TAG not in first.metadata.get("tags", []):
        raise ValueError(f"{path.name}: its first code cell has no tag {TAG!r}; add a setup cell there")
    if first.source == setup_source():
        return False
    first.source = setup_source()
    path.write_text(nbformat.writes(notebook) + "\n", "utf-8")
    return True


def main() -> int:
    if "--release" in sys.argv[1:]:
        config = ROOT / "_config.yml"
        config.write_text(SETTING.sub(rf"\g<1>\g<2>\g<3>{version_tag()}", config.read_text("utf-8")), "utf-8")
    for path in sorted((ROOT / "book").rglob("*.ipynb")):
        if write_notebook(path):
            print(f"{path.name}: written")
    readme = ROOT / "README.md"
    readme.write_text(LINKS.sub(colab_links(), readme.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
