"""Pack the built book into one archive that opens from the file system: no server, no network.

    make archive     or     python -m tools archive [--html FOLDER] [--to FILE]

A browser refuses one thing to a page that was opened as a file: to read another file. So what a page asks for, the
index of the search and the weights of the lab, are scripts. The same book gives the same bytes: the archive keeps no
times and no owners.

For Colab without a public home the folder `colab` holds the wheel of the library, the chapters and the exercises. The
notebooks of the archive carry the seal of that very wheel in their first cell.
"""

import argparse
import sys
import tempfile
import zipfile
from pathlib import Path

import nbformat

from tools.notebooks.setup_cell import locked, setup_source, with_cell
from tools.publish import wheel
from tools.publish.home import home

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build/html"
NAME = "circuitkit-book"
LEFT_OUT = {".buildinfo", ".stamp-book", "objects.inv"}
START = """\
circuitkit: transformer circuits you can run

Open index.html in a browser. Nothing has to be installed, and no network is asked.

To run a chapter on Colab, at https://colab.research.google.com: upload a notebook from the folder colab, then, in the panel
of files on the left, the file that ends in .whl from the same folder; then choose Runtime, Run all. The first cell finds
that file, and takes the few packages that Colab lacks from the package index. In colab/exercises are the exercises
without their solutions.
"""


def contents(html: Path) -> dict[str, bytes]:
    """Every file of the archive by its name in it."""
    if not (html / "index.html").is_file():
        raise SystemExit(f"{html} holds no built book. Build it first: make book")
    files = {
        path.relative_to(html).as_posix(): path.read_bytes()
        for path in sorted(html.rglob("*"))
        if path.is_file()
        and path.name not in LEFT_OUT
        and not path.relative_to(html).parts[0].startswith(".")
    }
    files["START.txt"] = START.encode("utf-8")
    return files | for_colab(files)


def for_colab(files: dict[str, bytes]) -> dict[str, bytes]:
    """The wheel and the notebooks, and the notebooks that pages offer, all with the seal of the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        made = wheel.build(Path(folder))
        found, seal = {f"colab/{made.name}": made.read_bytes()}, wheel.seal(made)
    source = setup_source(home()._replace(seal=seal), locked())

    def sealed(path: str, text: bytes) -> bytes:
        page = with_cell(nbformat.reads(text.decode("utf-8"), as_version=4), source, path)
        return (nbformat.writes(page) + "\n").encode("utf-8")

    for path in sorted((ROOT / "book").glob("[0-9]*.ipynb")):
        found[f"colab/{path.name}"] = sealed(path.name, path.read_bytes())
    for path in sorted((ROOT / "exercises").glob("*.ipynb")):
        found[f"colab/exercises/{path.name}"] = sealed(path.name, path.read_bytes())
    return found | {
        name: sealed(name, text) for name, text in files.items() if name.endswith(".ipynb")
    }


def pack(html: Path, archive: Path) -> Path:
    """Write the archive; its bytes depend on the book only."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for name, data in sorted(contents(html).items()):
            entry = zipfile.ZipInfo(f"{NAME}/{name}")  # its time is 1980
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, data)
    return archive


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--html", type=Path, default=HTML, help="the built book")
    parser.add_argument("--to", type=Path, default=ROOT / f"_build/{NAME}.zip", help="the archive")
    options = parser.parse_args(arguments)
    archive = pack(options.html, options.to)
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB. Unpack it and open {NAME}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
