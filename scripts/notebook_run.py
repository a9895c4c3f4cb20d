"""Run a notebook in this process and say where it first departs from what is stored.

For runs by the hundred (`scripts/notebook_mutants.py`): no kernel is started, so a run costs as much as its cells. What
counts as a departure is what the test of the notebooks counts: an error, or an output that differs after the same
replacements, pictures not compared.
"""

import contextlib
import io
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import nbformat

ROOT = Path(__file__).resolve().parent.parent
SANITIZE = ROOT / "tests/notebooks/sanitize.cfg"
NOT_COMPARED = {"image/png", "image/jpeg"}


class Departure(NamedTuple):
    """The first cell that fails."""

    cell: int
    """Its place in the notebook, counting every cell from 0."""
    what: str
    """The name of the exception, or `"output"`."""
    detail: str


def comparable(outputs: list[dict], patterns: dict[str, str]) -> dict[str, list[str]]:
    """What is compared: streams joined, values by MIME type in their order, each with the replacements made."""
    import re

    found: dict[str, list[str]] = {}
    for output in outputs:
        if output["output_type"] == "stream":
            texts = found.setdefault(output["name"], [""])
            texts[0] += output["text"]
        for kind, value in output.get("data", {}).items():
            if kind not in NOT_COMPARED:
                found.setdefault(kind, []).append(value)
    for texts in found.values():
        for place, text in enumerate(texts):
            for pattern, replacement in patterns.items():
                text = re.sub(pattern, replacement, text)
            texts[place] = text
    return {kind: texts for kind, texts in found.items() if texts != [""]}


def first_difference(a: dict[str, list[str]], b: dict[str, list[str]]) -> str:
    for kind in sorted(a.keys() | b.keys()):
        pairs = zip("\n".join(a.get(kind, [])).splitlines(), "\n".join(b.get(kind, [])).splitlines(), strict=False)
        for stored, fresh in pairs:
            if stored != fresh:
                return f"{kind}: {stored[:70]!r} is now {fresh[:70]!r}"
    return f"stored {sorted(a)}, fresh {sorted(b)}, or one is longer"


def shell():
    """An IPython shell whose displayed values are caught: `(shell, values)`."""
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    made = InteractiveShell.instance()
    made.display_pub = CapturingDisplayPublisher()
    made.display_trap.hook = CapturingDisplayHook(made, outputs=made.display_pub.outputs)
    made.showtraceback = lambda *args, **kwargs: None
    return made, made.display_pub.outputs


def departure(path: Path, patterns: dict[str, str]) -> Departure | None:
    """Run the cells in order, in an empty namespace; stop at the first departure. None if there is none."""
    notebook = nbformat.read(path, as_version=4)
    running, values = shell()
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        values.clear()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            result = running.run_cell(cell.source)
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            return Departure(number, type(error).__name__, str(error).strip()[:160])
        if "nbval-ignore-output" in cell.metadata.get("tags", []):
            continue
        streams = [
            {"output_type": "stream", "name": name, "text": text.getvalue()}
            for name, text in (("stdout", out), ("stderr", err))
        ]
        shown = [{"output_type": "display_data", "data": value["data"]} for value in values]
        stored, fresh = comparable(cell.outputs, patterns), comparable(streams + shown, patterns)
        if stored != fresh:
            return Departure(number, "output", first_difference(stored, fresh))
    return None


class Calls:
    """While it is open, notes which functions of the library are called by cells, by their names."""

    def __init__(self, library: Path):
        self.library, self.names = library, set()

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, _):
        if event != "call" or frame.f_back is None or frame.f_back.f_globals.get("__name__") != "__main__":
            return
        code = frame.f_code
        plain = not code.co_name.startswith("_") or code.co_name == "__call__"
        if plain and code.co_filename.startswith(str(self.library)) and "<" not in code.co_qualname:
            self.names.add(public_name(Path(code.co_filename).relative_to(self.library).parts[0], code.co_qualname))


def public_name(package: str, qualname: str) -> str:
    """`circuits.full_ov`, `Heads.OV`: package and name, the package left out where it is private."""
    return qualname if package.startswith("_") or package.endswith(".py") else f"{package}.{qualname}"
