"""A pytest plugin for the tests of the website: the built book on a local server, and pages of it in a browser.

The browser itself is the fixture `browser` of pytest-playwright.
"""

import os
import re
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tools.publish.browser import installed_chromium

ROOT = Path(__file__).resolve().parents[2]
HTML = Path(os.environ.get("CIRCUITKIT_HTML", ROOT / "_build/html"))
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
PHONE, DESKTOP = 390, 1280

SCROLL_THROUGH = """async () => {
    for (let y = 0; y < document.documentElement.scrollHeight; y += innerHeight - 60) {
        window.scrollTo({top: y, behavior: "instant"});
        await new Promise(done => setTimeout(done, 40));
    }
    document.querySelectorAll("img").forEach(image => { image.loading = "eager"; });
}"""
ALL_LOADED = """() => {
    const all = (selector, test) => [...document.querySelectorAll(selector)].every(test);
    return all(".math", formula => formula.querySelector("mjx-container"))
        && all(".ck-attention", view => view.dataset.live === "ready")
        && all("img", image => image.complete);
}"""
MISSING_IMAGES = "[...document.images].filter(i => !i.naturalWidth).map(i => i.src.slice(0, 100))"
TOO_WIDE = """() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    const beyond = element => element.getBoundingClientRect().right > width + 1;
    return [...document.body.querySelectorAll("*")].filter(beyond).slice(-5)
        .map(element => element.outerHTML.slice(0, 100))
        .concat(`the page is ${document.documentElement.scrollWidth} px wide, not ${width}`);
}"""


def pages() -> list[str]:
    """The pages of the table of contents, as paths below the built book."""
    contents = (ROOT / "_toc.yml").read_text("utf-8")
    names = re.findall(r"^(?:root| *- file): (\S+)", contents, re.M)
    return [f"{name.removesuffix('.md').removesuffix('.ipynb')}.html" for name in names]


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Write no log."""


@contextmanager
def served(folder: Path = HTML):
    """Serve a folder on a free local port; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class OpenPage:
    """One page in a tab of its own. `problems` collects errors and requests to other hosts."""

    def __init__(self, browser, url: str, width: int = PHONE, theme: str = "light", **options):
        size = {"width": width, "height": 844}
        self.context = browser.new_context(viewport=size, color_scheme=theme, **options)
        self.page = self.context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("request", self._on_request)
        self.page.on("response", self._on_response)
        self.go(url)

    def go(self, url: str) -> None:
        """Open an address in this tab, and collect what goes wrong there."""
        self.problems: list[str] = []
        self.host = urlparse(url).netloc
        self.page.goto(url, wait_until="load")

    def empty(self) -> None:
        """Leave the page and forget what it stored, so that another test can use the tab."""
        self.page.unroute_all()
        self.page.evaluate("sessionStorage.clear()")
        self.page.goto("about:blank")
        session = self.context.new_cdp_session(self.page)
        stored = {"origin": f"http://{self.host}", "storageTypes": "all"}
        session.send("Storage.clearDataForOrigin", stored)
        session.detach()

    def _on_console(self, message) -> None:
        if message.type == "error":
            self.problems.append(f"console error: {message.text}")

    def _on_request(self, request) -> None:
        url = urlparse(request.url)
        if url.netloc != self.host and url.scheme not in ("data", "blob"):
            self.problems.append(f"request to another host: {request.url}")

    def _on_response(self, response) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def read(self) -> None:
        """Scroll to the end, so that formulas, views and pictures load, and wait for them."""
        self.page.evaluate(SCROLL_THROUGH)
        self.page.wait_for_function(ALL_LOADED, polling=100, timeout=30_000)

    def missing_images(self) -> list[str]:
        return self.page.evaluate(MISSING_IMAGES)

    def too_wide(self) -> list[str]:
        """What makes the page wider than the window; the last line gives the widths."""
        return self.page.evaluate(TOO_WIDE)

    def accessibility_faults(self, selector: str = "html", *, contrast: bool = True) -> list[str]:
        """Serious and critical findings of axe-core within a part of the page.

        The contrast of the colours takes as long as all other rules; a test may leave it to another one.
        """
        from axe_playwright_python.sync_playwright import Axe

        # With preload, axe would fetch style sheets again and misread their relative imports.
        options = {"resultTypes": ["violations"], "preload": False}
        if not contrast:
            options["rules"] = {"color-contrast": {"enabled": False}}
        found = Axe().run(self.page, selector, options).response["violations"]
        return [
            f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:160]}"
            for rule in found
            if rule["impact"] in ("serious", "critical")
        ]


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    """Prefer a Chromium that is installed, and cut its network."""
    found = installed_chromium()
    chosen = {"executable_path": found} if found else {}
    return browser_type_launch_args | chosen | {"args": [NO_NETWORK]}


@pytest.fixture(scope="session")
def site():
    """The address of the built book."""
    assert (HTML / "index.html").is_file(), "the book is not built; run `make book` first"
    with served() as address:
        yield address


@pytest.fixture(scope="session")
def tabs(browser):
    """Tabs that tests use one after another, by width and other options; a new one would compile every script again."""
    free: dict[str, list[OpenPage]] = {}
    yield free
    for tab in sum(free.values(), []):
        tab.context.close()


@pytest.fixture
def open_page(browser, tabs):
    """Open pages; they are closed after the test.

    With `again`, a page opens in a tab that an earlier test has left, and the test leaves it to a later one. Such a
    test must not change the tab itself: what it emulates, or the scripts that run first in every page.
    """
    own: list[OpenPage] = []
    lent: list[tuple[str, OpenPage]] = []

    def open_(url: str, *, again: bool = False, **options) -> OpenPage:
        if not again:
            own.append(OpenPage(browser, url, **options))
            return own[-1]
        kind = repr(sorted(options.items()))
        free = tabs.setdefault(kind, [])
        if free:
            tab = free.pop()
            tab.go(url)
        else:
            tab = OpenPage(browser, url, **options)
        lent.append((kind, tab))
        return tab

    yield open_
    for one in own:
        one.context.close()
    for kind, tab in lent:
        tab.empty()
        tabs[kind].append(tab)


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items) -> None:
    """Mark the tests with a browser, and run their files last: while Playwright runs, its process starts no event loop."""
    with_browser = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
    for item in with_browser:
        item.add_marker("browser")
    files = {item.path for item in with_browser}
    items.sort(key=lambda item: item.path in files)
