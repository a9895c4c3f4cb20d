"""Weekly: attention views in a real JupyterLab: still while untrusted, live once run, saved without scripts."""

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

from circuitkit import figures
from tests.support.site import DESKTOP

pytestmark = pytest.mark.weekly
PATIENCE = 180_000  # milliseconds
CONFIG = """\
c.ServerApp.jpserver_extensions = {"jupyter_lsp": False, "jupyter_server_terminals": False}
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.extension_manager = "readonly"
c.LabApp.expose_app_in_browser = True
c.IdentityProvider.token = ""
"""
CODE = """\
from circuitkit import figures
figures.attention(["a", " b"], [[[1.0, 0.0], [0.2, 0.8]]], ["L0H0"], alt="The head attends to both")"""
IDLE = """() => {
    const kernel = globalThis.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
COMMAND = "async name => void await jupyterapp.commands.execute(name)"


def write_notebook(path) -> str:
    """A notebook with a stored view that the server does not trust; returns the view's HTML."""
    view = figures.attention(
        ["a", " b"], [[[1.0, 0.0], [0.2, 0.8]]], ["L0H0"], alt="The head attends to both"
    )
    data = {"text/plain": repr(view), "text/html": view._repr_html_()}
    output = nbformat.v4.new_output("execute_result", data=data, execution_count=1)
    cell = nbformat.v4.new_code_cell(CODE, outputs=[output], execution_count=1)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), path)
    return data["text/html"]


def wait_for_server(address: str, server, log) -> None:
    for _ in range(PATIENCE // 500):
        try:
            urllib.request.urlopen(f"{address}/api", timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert server.poll() is None, log.read_text()
            time.sleep(0.5)


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab whose folder holds nothing but the test's notebook."""
    (tmp_path / "home/config").mkdir(parents=True)
    (tmp_path / "home/config/jupyter_lab_config.py").write_text(CONFIG)
    kinds = ("config", "data", "runtime")
    places = {f"JUPYTER_{kind.upper()}_DIR": str(tmp_path / "home" / kind) for kind in kinds}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", str(tmp_path)]
    log = tmp_path / "log"
    with log.open("w") as text:
        environment = os.environ | places | {"HOME": str(tmp_path / "home")}
        server = subprocess.Popen(command, env=environment, stdout=text, stderr=text)
    try:
        wait_for_server(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def test_view_is_still_while_untrusted_and_live_once_run(lab, open_page, tmp_path):
    stored = write_notebook(tmp_path / "page.ipynb")
    opened = open_page(f"{lab}/lab/tree/page.ipynb", width=DESKTOP)
    page = opened.page
    page.set_default_timeout(PATIENCE)
    page.wait_for_function(IDLE, polling=500)
    view = page.locator("figure.ck-attention").first
    view.locator(".ck-still").wait_for()
    assert view.locator(".ck-view canvas").count() == 0
    page.evaluate(COMMAND, "notebook:run-all-cells")
    view.locator(".ck-view canvas").wait_for()
    assert not view.locator(".ck-still").is_visible()
    page.evaluate(COMMAND, "docmanager:save")
    saved = json.loads((tmp_path / "page.ipynb").read_text("utf-8"))
    (output,) = saved["cells"][0]["outputs"]
    assert "".join(output["data"]["text/html"]) == stored, "JupyterLab saved something else"
    requests = [problem for problem in opened.problems if "another host" in problem]
    assert requests == []
