"""Attention views in a real JupyterLab, in headless Chromium with the network cut: untrusted, run, saved and opened again."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import nbformat
import pytest
from browser_tools import SCREENSHOTS
from playwright.sync_api import expect

from circuitkit import figures
from circuitkit.figures import _live as live

PATIENCE = 180_000  # milliseconds; for a machine that does other things
CONFIG = """\
c.ServerApp.jpserver_extensions = {"jupyter_lsp": False, "jupyter_server_terminals": False}
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.extension_manager = "readonly"
c.LabApp.expose_app_in_browser = True
c.IdentityProvider.token = ""
"""
DATA = """\
from circuitkit import figures
tokens, patterns = ["<bos>", " the"], [[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]]]
"""
CELLS = (
    f'{DATA}figures.attention(tokens, patterns, ["L0H0", "L0H1"], alt="Two heads look back")',
    'figures.attention(tokens, patterns[1], ["L0H1"], alt="One head looks back")',
)
FILLER = "One line of text.\n\n" * 40  # so that the second view is far from the window
STATE = """cell => {
    const figure = jupyterapp.shell.currentWidget.content.widgets[cell].node.querySelector("figure.ck-attention");
    if (!figure?.isConnected) return null;
    const still = getComputedStyle(figure.querySelector(".ck-still")).display !== "none";
    return { still, canvases: figure.querySelectorAll(".ck-view canvas").length };
}"""
VIEWS = (0, 2)  # the cells with a view
STILL, LIVE = {"still": True, "canvases": 0}, {"still": False, "canvases": 1}


def stored_page():
    """A notebook as the book stores them, never trusted by this server."""
    page = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    scope = {}
    for count, code in enumerate(CELLS, start=1):
        *before, last = code.splitlines()
        exec("\n".join(before), {}, scope)
        view = eval(last, {"figures": figures} | scope)
        data = {"text/plain": repr(view), "text/html": view._repr_html_()}
        output = nbformat.v4.new_output("execute_result", data=data, execution_count=count)
        page.cells.append(nbformat.v4.new_code_cell(code, outputs=[output], execution_count=count))
        page.cells.append(nbformat.v4.new_markdown_cell(FILLER))
    return page


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on a folder with one notebook; its address and that notebook."""
    folder, home = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("home")
    path = folder / "page.ipynb"
    nbformat.write(stored_page(), path)
    (home / "config").mkdir()
    (home / "config/jupyter_lab_config.py").write_text(CONFIG)
    environment = {
        f"JUPYTER_{kind.upper()}_DIR": str(home / kind) for kind in ("config", "data", "runtime")
    }
    environment |= {"HOME": str(home), "IPYTHONDIR": str(home / "ipython"), "OMP_NUM_THREADS": "1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        str(folder),
    ]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log)
    try:
        for _ in range(PATIENCE // 500):
            try:
                urllib.request.urlopen(f"{address}/api", timeout=5)
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert server.poll() is None, (home / "log").read_text()
                time.sleep(0.5)
        yield address, path
    finally:
        server.terminate()
        server.wait()


class Tab:
    """One tab of a browser: the open notebook, and what it asked and got."""

    def __init__(self, browser, address: str):
        self.page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.page.set_default_timeout(PATIENCE)
        self.outside, self.errors, self.scripts = [], [], []
        self.page.route("**/*", self._cut)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("websocket", lambda wire: wire.on("framereceived", self._count))
        self.host = address
        self.page.goto(f"{address}/lab/tree/page.ipynb", timeout=PATIENCE)
        self.page.wait_for_function(
            """() => {
                const kernel = globalThis.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
                return kernel?.connectionStatus === "connected" && kernel.status === "idle";
            }"""
        )

    def _cut(self, route):
        if route.request.url.startswith((self.host, "data:", "blob:")):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()

    def _count(self, frame):
        text = frame if isinstance(frame, str) else frame.decode("utf-8", "replace")
        self.scripts += ["script"] * text.count("CircuitsVis.AttentionPattern")

    def do(self, command):
        self.page.evaluate("async name => void await jupyterapp.commands.execute(name)", command)

    def state(self, cell, live=False):
        """What the view of a cell shows, brought into the window; `live`: once it is."""
        self.page.evaluate(
            "cell => jupyterapp.shell.currentWidget.content.scrollToItem(cell, 'start')", cell
        )
        shown = "view => view?.canvases === 1" if live else "view => view !== null"
        self.page.wait_for_function(f"cell => ({shown})(({STATE})(cell))", arg=cell)
        return self.page.evaluate(STATE, cell)

    def picture(self, name):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"jupyterlab-{name}.png")


@pytest.fixture(scope="module")
def untrusted(browser, lab):
    tab = Tab(browser, lab[0])
    yield tab
    tab.page.context.close()


@pytest.fixture(scope="module")
def first_visit(untrusted, lab):
    """What the notebook shows before it is run, and after; then it is saved."""
    before = [untrusted.state(cell) for cell in VIEWS]
    text = untrusted.page.locator(".jp-Notebook").inner_text()
    untrusted.state(0)
    untrusted.picture("untrusted")
    untrusted.do(
        "notebook:run-all-cells"
    )  # and goes to the last cell: the first view is out of the window, and of the page
    after = [untrusted.state(cell, live=True) for cell in reversed(VIEWS)]
    untrusted.picture("run")
    untrusted.do("docmanager:save")
    return before, text, after, json.loads(lab[1].read_text("utf-8"))


def test_an_untrusted_notebook_shows_the_stills_and_asks_nothing(first_visit):
    before, text, _, _ = first_visit
    assert before == [STILL, STILL]
    assert "inline scripts" not in text


def test_a_notebook_that_was_run_shows_the_live_views_in_their_place(first_visit, untrusted):
    assert first_visit[2] == [LIVE, LIVE]
    heads = untrusted.page.locator("figure.ck-attention").first.locator(".ck-head")
    heads.nth(1).focus()
    untrusted.page.keyboard.press("Enter")
    expect(untrusted.page.locator(".ck-title").first).to_have_text("L0H1")


def test_the_script_came_once_from_the_kernel_and_no_other_host_was_asked(first_visit, untrusted):
    assert live.script().count("CircuitsVis.AttentionPattern") == 1
    assert len(untrusted.scripts) == 1
    assert (untrusted.outside, untrusted.errors) == ([], [])


def test_what_jupyterlab_saves_holds_no_script(first_visit):
    fresh, stored = first_visit[3]["cells"], stored_page().cells
    for new, old in zip(fresh, stored, strict=True):
        shown = ["".join(output["data"]["text/html"]) for output in new.get("outputs", [])]
        assert shown == [output["data"]["text/html"] for output in old.get("outputs", [])]
        assert all(
            output["data"].keys() == {"text/html", "text/plain"}
            for output in new.get("outputs", [])
        )


def test_opened_again_the_trusted_views_are_still_until_one_of_them_is_run(
    first_visit, browser, lab, request
):
    """The kernel is the same and the page is another: the script is sent once more, and every view lives."""
    tab = Tab(browser, lab[0])
    request.addfinalizer(tab.page.context.close)
    assert [tab.state(cell) for cell in VIEWS] == [STILL, STILL]
    tab.picture("trusted")
    tab.page.evaluate(
        "cell => { jupyterapp.shell.currentWidget.content.activeCellIndex = cell; }", VIEWS[1]
    )
    tab.do("notebook:run-cell")
    assert [tab.state(cell, live=True) for cell in reversed(VIEWS)] == [LIVE, LIVE]
    assert len(tab.scripts) == 1
    assert (tab.outside, tab.errors) == ([], [])
