"""How long the book takes to build from nothing, in seconds of the reference, and how much a reader fetches."""

import subprocess
import sys
import tempfile
from pathlib import Path

from reference import in_reference_seconds

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            Path(sys.executable).with_name("jupyter-book"),
            "build",
            ROOT,
            "--path-output",
            folder,
            "--quiet",
        ]
        taken = in_reference_seconds(
            lambda: subprocess.run(command, check=True, capture_output=True)
        )
        print(f"book-build-reference-seconds {taken:.1f} 30")
        html = Path(folder) / "_build/html"
        pages = [path for path in (html / "book").glob("*.html")]
        print(
            f"book-largest-page-megabytes {max(path.stat().st_size for path in pages) / 1e6:.2f} 2"
        )
        print(
            f"book-whole-megabytes {sum(path.stat().st_size for path in html.rglob('*') if path.is_file()) / 1e6:.1f} 60"
        )
