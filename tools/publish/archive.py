"""Pack the built book into one zip file that opens without a server or a network.

    make archive     or     python -m tools archive

The folder `colab` holds the wheel of the library and the notebooks, to upload to Colab.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.notebooks.execute import notebooks

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build/html"
NAME = "circuitkit-book"
START = """\
circuitkit: transformer circuits that you can run

Open index.html in a browser. You need neither an installation nor a network.

To run a chapter on Colab (https://colab.research.google.com), upload a notebook from the folder colab and,
into the panel of files on the left, the file from the same folder whose name ends in .whl. Then choose
Runtime, Run all. The exercises without their solutions are in colab/exercises.
"""


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources, so that no older build can add files to it."""
    copy = folder / "copy"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(copy)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def pack(html: Path, archive: Path) -> Path:
    """Write the built book, the wheel and the notebooks into a zip file."""
    if not (html / "index.html").is_file():
        raise SystemExit(f"{html} holds no built book. Build it first: make book")
    files = {path.relative_to(html): path for path in sorted(html.rglob("*")) if path.is_file()}
    files |= {Path("colab", p.relative_to(ROOT / "book")): p for p in notebooks()}
    files |= {Path("colab/exercises", p.name): p for p in (ROOT / "exercises").glob("*.ipynb")}
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        files[Path("colab", wheel.name)] = wheel
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, path in files.items():
                if not name.name.startswith("."):
                    zipped.write(path, f"{NAME}/{name.as_posix()}")
            zipped.writestr(f"{NAME}/START.txt", START)
    return archive


def main() -> None:
    archive = pack(HTML, ROOT / f"_build/{NAME}.zip")
    size = archive.stat().st_size / 1e6
    print(f"{archive}: {size:.1f} MB. Unpack it and open {NAME}/index.html")
