"""Run Lighthouse over every page of the built book, at a desk and on a phone, and hold it to its targets.

    make lighthouse     or     python -m tools lighthouse [--pages book/api.html ...] [--runs 3]

Accessibility 100 and best practices 95 or more on every page; performance 95 at a desk and 90 on a phone, whose processor
is four times slower and keeps a chapter's reader waiting two seconds at most. A busy machine is slow: a page that misses is
asked again, and the median counts. The pages are served as a web host serves them: compressed. Reports stay in
_build/lighthouse.
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
from itertools import product
from pathlib import Path
from statistics import median

from tools.check.machine import get_browser
from tools.publish.pdf import listed

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build/html"
REPORTS = ROOT / "_build/lighthouse"
PROGRAM = ROOT / "tools/publish/node/node_modules/.bin/lighthouse"
TARGETS = {"accessibility": 100, "best-practices": 95}
PERFORMANCE = {"desktop": 95, "mobile": 90}
BLOCKED = 2000  # milliseconds, on the phone
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


def measured(address: str, name: str, device: str) -> dict[str, float]:
    """Run Lighthouse once; returns the score of each category, 0 to 100, and the milliseconds of blocking."""
    report = REPORTS / f"{name}-{device}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    command = [str(PROGRAM), address, "--quiet", "--output=json", f"--output-path={report}"]
    command += [
        f"--only-categories={','.join(['performance', *TARGETS])}",
        "--chrome-flags=--headless=new --no-sandbox",
    ]
    if device == "desktop":
        command.append("--preset=desktop")
    done = subprocess.run(
        command, env=os.environ | {"CHROME_PATH": get_browser()}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"Lighthouse failed on {address}:\n{done.stderr[-2000:]}")
    found = json.loads(report.read_text("utf-8"))
    if error := found.get("runtimeError"):
        raise SystemExit(f"Lighthouse could not open {address}: {error.get('message', error)}")
    scores = {name: 100 * found["categories"][name]["score"] for name in ("performance", *TARGETS)}
    return scores | {"blocked": found["audits"]["total-blocking-time"]["numericValue"]}


def missed(found: dict[str, float], device: str) -> list[str]:
    """What a page does not reach."""
    least = TARGETS | {"performance": PERFORMANCE[device]}
    below = [
        f"{name} {found[name]:.0f} of {wanted}"
        for name, wanted in least.items()
        if found[name] < wanted
    ]
    return below + [f"blocked for {found['blocked']:.0f} ms"] * (
        device == "mobile" and found["blocked"] > BLOCKED
    )


def main(arguments: list[str] | None = None) -> int:
    import yaml

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", nargs="*", help="pages below the built book; all by default")
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        help="runs of which the median counts, for a page that misses",
    )
    options = parser.parse_args(arguments)
    if not PROGRAM.is_file() or not shutil.which("node"):
        raise SystemExit(
            "Lighthouse is not installed. Run: npm ci --prefix tools/publish/node (Node 20 or newer)"
        )
    pages = [page for _, page in listed(yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8")))]
    faults = []
    with served(HTML) as address:
        for page, device in product(options.pages or [*pages, "search.html"], PERFORMANCE):
            name = page.replace("/", "-")
            runs = [measured(f"{address}/{page}", name, device)]
            while missed(runs[0], device) and len(runs) < options.runs:
                runs.append(measured(f"{address}/{page}", name, device))
            found = {name: median(run[name] for run in runs) for name in runs[0]}
            told = "  ".join(f"{name} {value:.0f}" for name, value in found.items())
            print(f"{page}  {device}  {told}  ({len(runs)})", flush=True)
            faults += [f"{page}, {device}: {fault}" for fault in missed(found, device)]
    print(*(faults or ["every target is met"]), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
