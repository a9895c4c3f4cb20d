"""Run Lighthouse over every page of the built book and hold it to its targets.

    make lighthouse     or     python -m tools lighthouse [--pages book/api.html ...] [--runs 3]

Accessibility and best practices: 95 or more on every page. Performance: 90 or more at a desk on the heaviest chapter;
the same chapter on a phone is reported. Performance is the median of some runs, because a busy machine is slow. The
pages are served as a web host serves them: compressed. Reports are kept in _build/lighthouse.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from statistics import median

from tools.check.machine import get_browser
from tools.publish.pdf import listed

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build/html"
REPORTS = ROOT / "_build/lighthouse"
PROGRAM = ROOT / "tools/publish/node/node_modules/.bin/lighthouse"
TARGETS = {"accessibility": 0.95, "best-practices": 0.95}
PERFORMANCE = 0.90
TEXT = (".html", ".css", ".js", ".svg", ".json")


class Compressed(SimpleHTTPRequestHandler):
    """Text is compressed and may be kept, as every host of static pages does it."""

    protocol_version = "HTTP/1.1"

    def send_head(self):
        path = Path(self.translate_path(self.path))
        if path.suffix not in TEXT or not path.is_file():
            return super().send_head()
        data = gzip.compress(path.read_bytes(), 6)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        return BytesIO(data)

    def end_headers(self):
        self.send_header("Cache-Control", "max-age=31536000")
        super().end_headers()

    def log_message(self, *args):
        """Say nothing."""


@contextmanager
def served(folder: Path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Compressed, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def score(address: str, name: str, device: str, categories: list[str]) -> dict[str, float]:
    """Run Lighthouse once; returns the score of each category, 0 to 1."""
    report = REPORTS / f"{name}-{device}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    command = [str(PROGRAM), address, "--quiet", "--output=json", f"--output-path={report}"]
    command += [f"--only-categories={','.join(categories)}", "--chrome-flags=--headless=new --no-sandbox"]
    if device == "desktop":
        command.append("--preset=desktop")
    done = subprocess.run(command, env=os.environ | {"CHROME_PATH": get_browser()}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Lighthouse failed on {address}:\n{done.stderr[-2000:]}")
    found = json.loads(report.read_text("utf-8"))
    if error := found.get("runtimeError"):
        raise SystemExit(f"Lighthouse could not open {address}: {error.get('message', error)}")
    return {category: found["categories"][category]["score"] for category in categories}


def heaviest_chapter(pages: list[str]) -> str:
    """The chapter whose page and pictures are largest; what all pages share does not count."""

    def weight(page: str) -> int:
        text = (HTML / page).read_text("utf-8")
        pictures = [path for path in (HTML / "_images").glob("*") if path.name in text]
        return len(text) + sum(path.stat().st_size for path in pictures)

    return max(
        (page for page in pages if Path(page).name[:2].isdigit() and Path(page).parent.name == "book"), key=weight
    )


def main(arguments: list[str] | None = None) -> int:
    import yaml

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", nargs="*", help="pages below the built book; all by default")
    parser.add_argument("--runs", type=int, default=3, help="runs of which the median performance counts")
    options = parser.parse_args(arguments)
    if not PROGRAM.is_file() or not shutil.which("node"):
        raise SystemExit("Lighthouse is not installed. Run: npm ci --prefix tools/publish/node (Node 20 or newer)")
    pages = [page for _, page in listed(yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8")))]
    heavy = heaviest_chapter(pages)
    missed = []
    with served(HTML) as address:
        for page in options.pages or [*pages, "search.html"]:
            found = score(f"{address}/{page}", page.replace("/", "-"), "desktop", list(TARGETS))
            print(page, *(f"{name} {value * 100:.0f}" for name, value in found.items()), sep="  ", flush=True)
            missed += [
                f"{page}: {name} {found[name] * 100:.0f}" for name, least in TARGETS.items() if found[name] < least
            ]
        for device in ("desktop", "mobile"):
            runs = [
                score(f"{address}/{heavy}", f"performance-{run}", device, ["performance"])["performance"]
                for run in range(options.runs)
            ]
            print(
                f"{heavy}  performance, {device}: {median(runs) * 100:.0f} ({', '.join(f'{r * 100:.0f}' for r in runs)})"
            )
            if device == "desktop" and median(runs) < PERFORMANCE:
                missed.append(f"{heavy}: performance {median(runs) * 100:.0f}")
    print(*(missed or ["every target is met"]), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
