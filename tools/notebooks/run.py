"""Run a notebook in this process and say where it first departs from what is stored.

For runs by the hundred (`tools/notebooks/faults.py`): no kernel is started, so a run costs as much as its cells. What
counts as a departure is what the test of the notebooks counts: an error, or an output that differs after the same
replacements, pictures not compared.
"""

import ast
import builtins
import contextlib
import io
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import nbformat

ROOT = Path(__file__).resolve().parents[2]
SANITIZE = ROOT / "tests/notebooks/sanitize.cfg"
NOT_COMPARED = {"image/png", "image/jpeg"}
ONE_THREAD = "torch.set_num_threads(1)"


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
        pairs = zip(
            "\n".join(a.get(kind, [])).splitlines(),
            "\n".join(b.get(kind, [])).splitlines(),
            strict=False,
        )
        for stored, fresh in pairs:
            if stored != fresh:
                return f"{kind}: {stored[:70]!r} is now {fresh[:70]!r}"
    return f"stored {sorted(a)}, fresh {sorted(b)}, or one is longer"


class Asserts(ast.NodeTransformer):
    """Notes the asserts of each cell, and which of them run."""

    def __init__(self):
        self.cell, self.found, self.ran = 0, set(), set()

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        place = (self.cell, ast.unparse(node))
        self.found.add(place)
        note = ast.parse(f"__import__('builtins').__note__({place!r})").body
        builtins.__note__ = self.ran.add
        return [ast.copy_location(ast.fix_missing_locations(part), node) for part in note] + [node]


class Page:
    """A notebook whose cells run in this process, in an empty namespace."""

    def __init__(self, path: Path, patterns: dict[str, str]):
        from IPython.core.displayhook import CapturingDisplayHook
        from IPython.core.displaypub import CapturingDisplayPublisher
        from IPython.core.interactiveshell import InteractiveShell

        self.cells = nbformat.read(path, as_version=4).cells
        self.patterns = patterns
        self.shell = InteractiveShell.instance()
        self.shell.display_pub = CapturingDisplayPublisher()
        self.values = self.shell.display_pub.outputs
        self.shell.display_trap.hook = CapturingDisplayHook(self.shell, outputs=self.values)
        self.shell.showtraceback = lambda *args, **kwargs: None
        self.asserts = Asserts()
        self.shell.ast_transformers.append(self.asserts)

    def run(self, number: int) -> Departure | None:
        """Run one cell; how it departs from what is stored, or None."""
        cell = self.cells[number]
        if cell.cell_type != "code":
            return None
        self.values.clear()
        self.asserts.cell = number
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            result = self.shell.run_cell(cell.source)
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            return Departure(number, type(error).__name__, str(error).strip()[:160])
        if "nbval-ignore-output" in cell.metadata.get("tags", []):
            return None
        streams = [
            {"output_type": "stream", "name": name, "text": text.getvalue()}
            for name, text in (("stdout", out), ("stderr", err))
        ]
        shown = [{"output_type": "display_data", "data": value["data"]} for value in self.values]
        stored, fresh = (
            comparable(cell.outputs, self.patterns),
            comparable(streams + shown, self.patterns),
        )
        return (
            None
            if stored == fresh
            else Departure(number, "output", first_difference(stored, fresh))
        )

    def run_from(self, number: int) -> Departure | None:
        """Run the cells from this one on; the first departure, or None."""
        return next(
            (found for at in range(number, len(self.cells)) if (found := self.run(at)) is not None),
            None,
        )

    def departures(self) -> list[Departure]:
        """Run every cell, whatever the earlier ones did; each departure, and each assert that never ran."""
        found = [
            departure for at in range(len(self.cells)) if (departure := self.run(at)) is not None
        ]
        failed = {departure.cell for departure in found}
        return found + [
            Departure(cell, "assert", f"never ran: {text}"[:160])
            for cell, text in sorted(self.asserts.found)
            if (cell, text) not in self.asserts.ran and cell not in failed
        ]


def departures(
    path: str, threads: int = 1, seed: int | None = None, ulps: int = 1, seconds: int = 600
) -> tuple[list[Departure], float]:
    """Run a notebook in an empty folder: each cell that departs from what is stored, and the seconds it took.

    With `threads` in place of the one that a notebook asks for, and with a seed in a processor that rounds otherwise.
    """
    import torch
    from nbval.plugin import get_sanitize_patterns

    from tools.notebooks.last_bit import LastBit

    if hasattr(signal, "alarm"):
        signal.alarm(seconds)
    start = time.perf_counter()
    page = Page(Path(path).resolve(), dict(get_sanitize_patterns(SANITIZE.read_text("utf-8"))))
    for cell in page.cells:
        cell.source = cell.source.replace(ONE_THREAD, f"torch.set_num_threads({threads})")
    torch.set_num_threads(threads)
    mode = contextlib.nullcontext() if seed is None else LastBit(seed, ulps)
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty), mode:
        found = page.departures()
    return found, time.perf_counter() - start


class Calls:
    """While it is open, notes which functions of the library run, and which of them cells call themselves."""

    def __init__(self, library: Path):
        self.library = f"{library}/"
        self.names: set[str] = set()
        """Public names of what cells call."""
        self.ran: set[tuple[str, str]] = set()
        """File below the library and name of everything that ran."""

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.library):
            return
        file, name = code.co_filename.removeprefix(self.library), code.co_qualname
        self.ran.add((file, name))
        plain = "<" not in name and (not code.co_name.startswith("_") or code.co_name == "__call__")
        if (
            plain
            and frame.f_back is not None
            and frame.f_back.f_globals.get("__name__") == "__main__"
        ):
            self.names.add(public_name(file.split("/")[0], name))


def public_name(package: str, qualname: str) -> str:
    """`circuits.full_ov`, `Heads.OV`: package and name, the package left out where it is private."""
    return (
        qualname if package.startswith("_") or package.endswith(".py") else f"{package}.{qualname}"
    )
