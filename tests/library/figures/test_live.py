"""What makes views live outside the book: sent once to a page, never stored, from the installed package, hash checked."""

import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from circuitkit import figures
from circuitkit.figures import _live as live

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(figures.__file__).parent
ALT = "Each token looks at itself"


@pytest.fixture
def view():
    return figures.attention(["a", "b"], [[1.0, 0.0], [0.5, 0.5]], alt=ALT)


@pytest.fixture
def shown(monkeypatch):
    """What a shell publishes; `shown.ask(...)` says which request it works on."""
    shell = InteractiveShell()
    messages = []

    def publish(data, metadata=None, source=None, *, transient=None, update=False, **_):
        messages.append((update, data, (transient or {}).get("display_id")))

    request = {}
    monkeypatch.setattr(shell.display_pub, "publish", publish)
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    monkeypatch.setattr(InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(InteractiveShell, "instance", lambda: shell)
    monkeypatch.setattr(
        shell, "kernel", types.SimpleNamespace(get_parent=lambda: request), raising=False
    )
    monkeypatch.setattr(live, "_pages", set())

    def ask(session="page 1", **metadata):
        request.update(header={"session": session}, metadata=metadata)

    return types.SimpleNamespace(messages=messages, ask=ask, shell=shell)


def test_the_first_view_of_a_page_brings_the_scripts_which_the_view_replaces(view, shown):
    shown.ask(cellId="c1")
    view._ipython_display_()
    (first, scripts, place), (second, data, same) = shown.messages
    assert (first, second) == (False, True)
    assert place == same is not None
    assert scripts == {"application/javascript": live.script()}
    assert data == {"text/plain": repr(view), "text/html": view._repr_html_()}


def test_a_page_gets_them_once_and_a_page_that_was_reloaded_once_more(view, shown):
    for session in ("page 1", "page 1", "page 2", "page 1", "page 2"):
        shown.ask(session, cellId="c")
        try:
            view._ipython_display_()
        except NotImplementedError:
            shown.messages.append("as stored")
    sent = [m if isinstance(m, str) else "application/javascript" in m[1] for m in shown.messages]
    assert sent == [True, False, "as stored", True, False, "as stored", "as stored"]


def test_a_program_that_runs_a_notebook_gets_what_is_stored(view, shown):
    shown.ask("a program")
    with pytest.raises(NotImplementedError):
        view._ipython_display_()
    assert shown.messages == []
    assert shown.shell.display_formatter.format(view)[0].keys() == {"text/plain", "text/html"}


def test_outside_a_kernel_nothing_is_sent(view):
    with pytest.raises(NotImplementedError):
        view._ipython_display_()


def test_on_colab_a_view_asks_the_kernel_which_answers_with_the_scripts(view, shown, monkeypatch):
    answers = {}
    output = types.SimpleNamespace(
        register_callback=lambda name, answer: answers.update({name: answer})
    )
    for name, module in {
        "google": None,
        "google.colab": None,
        "google.colab.output": output,
    }.items():
        monkeypatch.setitem(sys.modules, name, module or types.ModuleType(name))
    live._answer_colab.cache_clear()
    view._ipython_display_()
    live._answer_colab.cache_clear()
    ((_, data, _),) = shown.messages
    assert data["text/html"] == view._repr_html_() + live.ASK_COLAB
    assert len(live.ASK_COLAB) < 600
    (name,) = answers
    assert f'"{name}"' in live.ASK_COLAB
    assert answers[name]().data == {"script": live.script()}


def test_the_script_is_the_installed_one_of_the_tried_version():
    script = Path(find_spec("circuitsvis").origin).parent / "dist/cdn/iife.js"
    assert importlib.metadata.version("circuitsvis") in live.__doc__ + Path(
        live.__file__
    ).read_text("utf-8")
    assert hashlib.sha256(script.read_bytes()).hexdigest() == live.SHA256
    assert script.read_text("utf-8") in live.script()


def test_a_script_with_another_hash_is_not_sent_and_the_view_stays_still(view, shown, monkeypatch):
    monkeypatch.setattr(live, "SHA256", "0" * 64)
    live.script.cache_clear()
    shown.ask(cellId="c1")
    with pytest.raises(
        ValueError, match=r"SHA-256 1ea7bcd5.*was tried with 0000.*circuitsvis==1\.43\.3"
    ):
        live.circuitsvis()
    with pytest.warns(UserWarning, match="views stay still"), pytest.raises(NotImplementedError):
        view._ipython_display_()
    assert shown.messages == []


def test_a_stored_view_holds_no_script_and_no_address(view):
    text = view._repr_html_()
    assert re.findall(r"<script[^>]*>", text) == ['<script type="application/json">']
    assert "//" not in re.sub(r"base64,[^\"]+", "", text)


def test_no_file_of_the_figures_names_another_host():
    for path in PACKAGE.glob("*"):
        if path.suffix in (".py", ".js", ".css"):
            assert re.findall(r"https?://[^\s\"']+", path.read_text("utf-8")) == [], path.name


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "book").rglob("*.ipynb")),
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_no_notebook_stores_the_script(path):
    outputs = [
        output
        for cell in nbformat.read(path, as_version=4).cells
        for output in cell.get("outputs", [])
    ]
    stored = json.dumps(outputs)
    assert "CircuitsVis" not in stored
    assert "unpkg" not in stored
    assert "application/javascript" not in stored


@pytest.mark.weekly
def test_a_notebook_that_a_program_runs_stores_no_more_than_the_view(tmp_path):
    """As `make notebooks` and nbval run it: the cell sends no `cellId`."""
    code = (
        "import sys\nfrom nbclient import NotebookClient\nimport nbformat\n"
        "page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(sys.argv[2])])\n"
        "NotebookClient(page, kernel_name='python3', timeout=120).execute()\n"
        "nbformat.write(page, sys.argv[1])\n"
    )
    cell = f'from circuitkit import figures\nfigures.attention(["a", "b"], [[1.0, 0.0], [0.5, 0.5]], alt="{ALT}")'
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "page.ipynb", cell], check=True, capture_output=True
    )
    (output,) = nbformat.read(tmp_path / "page.ipynb", as_version=4).cells[0].outputs
    assert output.output_type == "execute_result"
    assert output.data.keys() == {"text/plain", "text/html"}
    assert output.data["text/html"].count("<script") == 1
