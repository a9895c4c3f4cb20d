"""What makes attention views live: circuitsvis's script, taken from the installed package and never stored.

A stored view holds no script. The book's pages load two files of their own. In a notebook editor the first view that a page
shows is preceded, in the same output, by the scripts, which the view then replaces; on Colab, where each output has a page to
itself, a view asks the kernel for them.
"""

import hashlib
import json
import sys
import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

SHA256 = "1ea7bcd5dcd28ffdb23f4dea9c60db3606dac627fddce1a3b5141b7dfb490763"
"""Of the script in circuitsvis 1.43.3."""
ASK_COLAB = """<script>
globalThis.circuitkitAsked ??= google.colab.kernel.accessAllowed && (async () => {
  const answer = await google.colab.kernel.invokeFunction("circuitkit.attention", [], {});
  const text = answer.data["application/json"].script;
  document.head.append(Object.assign(document.createElement("script"), { textContent: text }));
})();
</script>"""
_pages: set[str] = set()
"""The editors' pages that have the script."""


def circuitsvis() -> str:
    """The script of the installed circuitsvis, if it is the one that this library was tried with."""
    script = Path(str(distribution("circuitsvis").locate_file("circuitsvis/dist/cdn/iife.js")))
    found = hashlib.sha256(script.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(
            f"the script of the installed circuitsvis has the SHA-256 {found}, and circuitkit was tried with {SHA256}, "
            f"so views stay still. Install the tried version, pip install circuitsvis==1.43.3, and restart Python."
        )
    return script.read_text("utf-8")


def part(kind: str) -> str:
    """`js` or `css` of attention views."""
    return files("circuitkit.figures").joinpath(f"attention.{kind}").read_text("utf-8")


@cache
def script() -> str:
    """Everything that a page outside the book needs, as one script."""
    bring = f"async () => {{\n{circuitsvis()}\nwindow.CircuitsVis = CircuitsVis;\n}}"
    start = f"{part('js')}\ncircuitkitAttention({bring}, {json.dumps(part('css'))});"
    return f"if (!window.circuitkitAttention) {{\n{start}\n}}\n"


def bring_to_life(html: str, text: str) -> bool:
    """Show a view in a page that can have it live; False where it is enough to show what is stored."""
    from IPython.core.display_functions import DisplayHandle, display
    from IPython.core.getipython import get_ipython

    try:
        if "google.colab" in sys.modules:
            _answer_colab()
            display({"text/plain": text, "text/html": f"{html}{ASK_COLAB}"}, raw=True)
            return True
        page = _page(get_ipython())
        if page is None or page in _pages:
            return False
        shown = DisplayHandle()
        shown.display({"application/javascript": script()}, raw=True)
    except ValueError as error:
        warnings.warn(str(error), stacklevel=2)
        return False
    _pages.add(page)
    shown.update({"text/plain": text, "text/html": html}, raw=True)
    return True


def _page(shell) -> str | None:
    """The page of an editor that asked for this cell: its session, a new one after each reload. Programs send no `cellId`."""
    request = shell.kernel.get_parent() if hasattr(shell, "kernel") else {}
    return (
        request.get("header", {}).get("session")
        if "cellId" in request.get("metadata", {})
        else None
    )


@cache
def _answer_colab() -> None:
    from IPython.core.display import JSON

    text = script()
    import_module("google.colab.output").register_callback(
        "circuitkit.attention", lambda: JSON({"script": text})
    )
