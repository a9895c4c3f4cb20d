"""The built book on a local server, opened in headless Chromium with the network cut."""

import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import yaml

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build/html"
SCREENSHOTS = ROOT / "_build/screenshots"
WIDTHS = {"wide": (1440, 900), "desktop": (1280, 900), "tablet": (820, 1180), "phone": (390, 844)}


def pages() -> list[str]:
    """The pages of the table of contents, as paths below the built book."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [toc["root"]]

    def walk(entries):
        for entry in entries:
            if "file" in entry:
                files.append(entry["file"])
            walk(entry.get("sections", []))

    for part in toc.get("parts", [toc]):
        walk(part.get("chapters", []))
    return [f"{file.removesuffix('.md').removesuffix('.ipynb')}.html" for file in files]


class NoFrame(Exception):
    """A browser under load draws no frame of a tab any more, for good, while its scripts go on; a new tab is drawn."""


def read_to_its_end(page, patience: int = 60_000, frame: int = 15_000) -> None:
    """Scroll through, so that whatever waits for a reader's eyes is there; wait for formulas and views, but not for ever.

    A script that waits has no limit of its own: it says what was not there in time (`patience`, and `frame` for a frame, in ms).
    """
    stopped = page.evaluate(
        """async ([patience, frame]) => {
            const late = (limit, answer) => new Promise(done => setTimeout(() => done(answer), limit));
            const frames = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
            let what = 'the end of the page';
            const read = async () => {
                for (let y = 0; y < document.documentElement.scrollHeight; y += innerHeight - 60) {
                    window.scrollTo({top: y, behavior: 'instant'});
                    const stopped = await Promise.race([frames(), late(frame, `no frame for ${frame} ms at ${y} px`)]);
                    if (typeof stopped == 'string') return stopped;
                }
                what = 'the formulas';
                await window.MathJax?.startup?.promise;
                what = 'the letters';
                await document.fonts.ready;
                window.scrollTo({top: 0, behavior: 'instant'});
            };
            const stopped = await Promise.race([read(), late(patience, patience)]);
            if (stopped === patience) throw new Error(`not there after ${patience} ms: ${what}`);
            return stopped;
        }""",
        [patience, frame],
    )
    if stopped:
        raise NoFrame(stopped)
    page.wait_for_function(
        "[...document.querySelectorAll('.ck-attention')].every(view => view.dataset.live === 'ready')",
        timeout=20_000,
    )


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Say nothing."""


@contextmanager
def served(folder: Path = HTML):
    """Serve a folder on a free local port; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# The elements among which axe judges contrast: one for each look, which is the colour, size and weight of a text and all
# that is painted behind it. The thousands of words of code on a page have a few dozen looks. A span of code that looks
# like one before it, or is blank, and is no more than a class on a piece of a line, is taken away from around its words
# until `WRAPPED`: of every element that is there axe asks where it stands and what covers it. No word moves by that.
LOOKS = """() => {
    const seen = new Set(), behind = new Map();
    const look = element => {
        if (!element) return '';
        if (!behind.has(element)) {
            const s = getComputedStyle(element), own = [];
            if (s.backgroundColor !== 'rgba(0, 0, 0, 0)' || s.backgroundImage !== 'none') own.push(s.backgroundColor, s.backgroundImage);
            if (s.opacity !== '1' || s.filter !== 'none' || s.mixBlendMode !== 'normal') own.push(s.opacity, s.filter, s.mixBlendMode);
            if (!['static', 'relative'].includes(s.position) || s.zIndex !== 'auto') own.push(s.position, s.zIndex, element.className);
            behind.set(element, `${look(element.parentElement)}|${own}`);
        }
        return behind.get(element);
    };
    document.querySelectorAll('[data-look]').forEach(element => element.removeAttribute('data-look'));
    for (const element of document.body.querySelectorAll('*')) {
        const speaks = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()) || 'value' in element;
        if (!speaks || !element.checkVisibility({visibilityProperty: true})) continue;
        const s = getComputedStyle(element);
        const key = [s.color, s.fontSize, s.fontWeight, s.textShadow, element.matches(':disabled, [aria-disabled=true]'), look(element)].join();
        if (!seen.has(key)) element.setAttribute('data-look', '');
        seen.add(key);
    }
    const taken = new Set(), plain = {display: 'inline', position: 'static', float: 'none', visibility: 'visible'};
    for (const span of [...document.body.querySelectorAll('pre span')].reverse()) {
        if (!span.firstChild || span.getAttributeNames().some(name => name !== 'class')) continue;
        if (![...span.childNodes].every(node => node.nodeType === 3 || taken.has(node))) continue;
        const s = getComputedStyle(span);
        if (Object.keys(plain).every(kind => s[kind] === plain[kind])) taken.add(span);
    }
    window.unwrapped = [...taken].map(span => [span, [...span.childNodes]]);
    for (const [span, inside] of [...window.unwrapped].reverse()) span.replaceWith(...inside);
}"""
WRAPPED = """() => {
    for (const [span, inside] of window.unwrapped) {
        inside[0].before(span);
        span.append(...inside);
    }
}"""


# All of a page that is no colour, as one number: its elements, which of them are there to be seen, and how large. The button
# that turns the theme shows another sign in each.
SHAPE = """() => {
    const button = '.theme-switch-button', boxes = [...document.body.querySelectorAll('*')].map(element => {
        if (element.closest(button)) return '';
        const seen = element.checkVisibility({visibilityProperty: true}), box = element.getBoundingClientRect();
        return element.querySelector(button) ? seen : [seen, Math.round(box.width), Math.round(box.height)];
    });
    let number = 0;
    for (const letter of document.body.outerHTML.replaceAll(' data-look=""', '') + boxes)
        number = Math.imul(number, 31) + letter.charCodeAt(0) | 0;
    return number;
}"""

COLOURS = [
    "color-contrast",
    "link-in-text-block",
]  # all rules of axe's kind "cat.color" but one that it does not ask by itself


class Visit:
    """One page in one theme and one width, and everything that went wrong on it."""

    def __init__(self, browser, address: str, page: str, theme: str, width: str):
        self.page_name, self.theme, self.width = page, theme, width
        for tries_left in (2, 1, 0):
            try:
                return self._read(browser, address)
            except NoFrame:
                self.context.close()
                if not tries_left:
                    raise

    def _read(self, browser, address: str) -> None:
        """Open it in a tab of its own and read it to its end."""
        page, theme, width = self.page_name, self.theme, self.width
        self.outside: list[str] = []
        self.errors: list[str] = []
        self._paths, self._sizes, self._judged = {}, Counter(), None
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        self.context = browser.new_context(
            viewport=size, color_scheme=theme, service_workers="block"
        )
        self.context.add_init_script(
            f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')"
        )
        self.page = self.context.new_page()
        self.host = urlparse(address).netloc
        self.page.on("request", self._ask)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(f"page error: {error}"))
        self.page.on("response", self._answer)
        log = self.context.new_cdp_session(self.page)
        log.send("Network.enable")
        log.on(
            "Network.responseReceived",
            lambda one: self._paths.update({one["requestId"]: one["response"]["url"]}),
        )
        log.on(
            "Network.loadingFinished",
            lambda one: self._sizes.update({one["requestId"]: one["encodedDataLength"]}),
        )
        self.page.goto(f"{address}/{page}", wait_until="load")
        read_to_its_end(self.page)

    def turn(self, theme: str) -> None:
        """The same page in the other theme."""
        self.theme = theme
        self.page.emulate_media(color_scheme=theme)
        self.page.evaluate(
            """async theme => {
                Object.assign(document.documentElement.dataset, {mode: theme, theme});
                await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
                await Promise.all(document.getAnimations().map(change => change.finished.catch(() => null)));
            }""",
            theme,
        )

    def loaded(self) -> list[tuple[str, int]]:
        """What was fetched, from the browser's own log: path and bytes of each answer."""
        self.page.wait_for_load_state("networkidle")
        return [
            (urlparse(url).path, int(self._sizes[at]))
            for at, url in self._paths.items()
            if url.startswith("http")
        ]

    def _ask(self, request):
        address = urlparse(request.url)
        if address.netloc != self.host and address.scheme not in ("data", "blob"):
            self.outside.append(request.url)

    def _hear(self, message):
        if message.type == "error":
            self.errors.append(f"console: {message.text}")

    def _answer(self, response):
        if response.status >= 400:
            self.errors.append(f"{response.status}: {response.url}")

    def missing_images(self) -> list[str]:
        """Pictures that do not arrive, also those in a closed menu, which load only when it opens."""
        return self.page.evaluate(
            """async () => {
                const images = [...document.images];
                images.forEach(image => { image.loading = 'eager'; });
                await Promise.all(images.map(image => image.decode().catch(() => null)));
                return images.filter(i => !i.complete || !i.naturalWidth).map(i => i.src.slice(0, 100));
            }"""
        )

    def silent_figures(self) -> list[str]:
        """Content images and SVG pictures without a text that stands for them."""
        return self.page.evaluate(
            """[...document.querySelectorAll('.bd-content article img, .bd-content article svg[role=img]')]
               .filter(e => !(e.alt || e.getAttribute('aria-label') || '').trim()).map(e => e.outerHTML.slice(0, 120))"""
        )

    def sideways(self) -> list[str]:
        """What makes the page wider than the window."""
        return self.page.evaluate(
            """() => {
                const wide = document.documentElement.clientWidth;
                if (document.documentElement.scrollWidth <= wide) return [];
                const boxed = e => { for (let p = e.parentElement; p; p = p.parentElement)
                    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)) return true; return false; };
                const out = [...document.body.querySelectorAll('*')]
                    .filter(e => e.getBoundingClientRect().right > wide + 1 && !boxed(e));
                return out.slice(0, 5).map(e => `${e.tagName}.${e.className}: ${e.getBoundingClientRect().right}`)
                    .concat(`scrollWidth ${document.documentElement.scrollWidth} > ${wide}`);
            }"""
        )

    def violations(self) -> list[str]:
        """Serious and critical findings of axe-core: of all its rules, and of those on colours alone where a page that was
        found to be without fault has changed nothing else since."""
        from axe_playwright_python.sync_playwright import Axe

        shape = self.page.evaluate(SHAPE)
        rules = {"runOnly": {"type": "rule", "values": COLOURS}} if shape == self._judged else {}
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(Axe().axe_script)
            self.page.evaluate(
                "axe.configure({rules: [{id: 'color-contrast', selector: '[data-look]'}]})"
            )
        self.page.evaluate(LOOKS)
        # Without preload axe would fetch style sheets by itself, and get their relative imports wrong.
        options = {"resultTypes": ["violations"], "preload": False} | rules
        found = self.page.evaluate("async options => (await axe.run(options)).violations", options)
        self.page.evaluate(WRAPPED)
        serious = [
            f"{rule['impact']} {rule['id']}: {rule['help']}: "
            + " | ".join(node["html"][:160] for node in rule["nodes"][:3])
            for rule in found
            if rule["impact"] in ("serious", "critical")
        ]
        self._judged = None if serious else shape
        return serious
