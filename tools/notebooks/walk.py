"""One walk through a notebook that tries every fault where it first matters.

A fault inside a function cannot change a cell before the first one that runs that function. So the notebook runs once
without faults, and before each cell the process forks a spare of itself; when the cell turns out to be the first that
runs a faulty function, the spare takes on the fault and runs the rest of the notebook. The result is that of a run from
the top, for the price of the cells behind it.
"""

import functools
import importlib
import inspect
import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any

from tools.notebooks.run import Calls, Departure, Page


def walk(
    path: Path, patterns: dict[str, str], library: Path, faults: list[dict], seconds: int
) -> dict[str, Any]:
    """`{"control": departure or None, "called": names, "found": {key: departure or None}}`.

    A fault is `{"key", "file" below the library, "function" as `Class.method`, "source" of the whole faulty file}`.
    """
    page, calls, found = Page(path, patterns), Calls(library), {}
    waiting = {fault["key"]: fault for fault in faults}
    for number, cell in enumerate(page.cells):
        if cell.cell_type != "code":
            continue
        spare, give, answers = _spare(page, number, seconds)
        with calls:
            departure = page.run(number)
        ran = {(file, name.split(".<locals>")[0]) for file, name in calls.ran}
        now = [fault for fault in waiting.values() if (fault["file"], fault["function"]) in ran]
        found |= _ask(spare, give, answers, [] if departure else now)
        for fault in now:
            del waiting[fault["key"]]
        if departure:
            return {"control": departure, "called": sorted(calls.names), "found": {}}
    return {"control": None, "called": sorted(calls.names), "found": found | dict.fromkeys(waiting)}


def _spare(page: Page, number: int, seconds: int) -> tuple[int, int, int]:
    """A fork that waits for faults before this cell: its process id, where to write them, where to read what came of them."""
    take, give = os.pipe()
    answers, answer = os.pipe()
    spare = os.fork()
    if spare:
        os.close(take)
        os.close(answer)
        return spare, give, answers
    os.close(give)
    for fault in json.loads(_all(take) or b"[]"):
        child = os.fork()
        if not child:
            signal.alarm(seconds)
            plant(fault)
            os.write(answer, json.dumps([fault["key"], page.run_from(number)]).encode() + b"\n")
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            os.write(
                answer,
                json.dumps([fault["key"], Departure(number, "died", f"exit {status}")]).encode()
                + b"\n",
            )
    os._exit(0)


def _ask(spare: int, give: int, answers: int, faults: list[dict]) -> dict[str, Departure | None]:
    with os.fdopen(give, "wb") as pipe:
        pipe.write(json.dumps(faults).encode())
    lines = _all(answers).splitlines()
    os.waitpid(spare, 0)
    return dict(json.loads(line) for line in lines)


def _all(reader: int) -> bytes:
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read()


def plant(fault: dict) -> None:
    """Give a function that is loaded the code it has in the faulty source; whoever holds the function sees it."""
    module = importlib.import_module(
        "circuitkit." + fault["file"].removesuffix(".py").replace("/", ".")
    )
    function = plain_function(module, fault["function"])
    function.__code__ = code_of(
        compile(fault["source"], function.__code__.co_filename, "exec"), fault["function"]
    )


def plain_function(module: types.ModuleType, qualname: str) -> types.FunctionType:
    """The function itself, without what decorators put around it."""
    found: Any = module
    for part in qualname.split("."):
        found = inspect.getattr_static(found, part)
    while not isinstance(found, types.FunctionType) or hasattr(found, "__wrapped__"):
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, functools.cached_property):
            found = found.func
        else:
            found = getattr(found, "__wrapped__", None) or found.__func__
    return found


def code_of(code: types.CodeType, qualname: str) -> types.CodeType:
    """The code of a function inside the code of its file."""
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            if part.co_qualname == qualname:
                return part
            if qualname.startswith(part.co_qualname + "."):
                return code_of(part, qualname)
    raise LookupError(f"{qualname} is not in {code.co_filename}")


def serve(sanitize: Path, seconds: int) -> None:
    """Answer each line of standard input, `[notebook, library, faults]`, with one line: what `walk` returns."""
    from nbval.plugin import get_sanitize_patterns

    patterns = dict(get_sanitize_patterns(sanitize.read_text()))
    for line in sys.stdin:
        path, library, faults = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.chdir(os.environ["EMPTY_FOLDER"])
            answer = walk(Path(path), patterns, Path(library), faults, seconds)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(answer).encode())
            os._exit(0)
        os.close(writer)
        answer = _all(reader)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        died = {"control": [-1, "died", f"exit {status}"], "called": [], "found": {}}
        print(answer.decode() or json.dumps(died), flush=True)
