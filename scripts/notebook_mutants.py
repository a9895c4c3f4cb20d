"""Plant one fault in each library function that a notebook explains, and require that the notebook fails.

    python scripts/notebook_mutants.py                    every notebook of tests/notebooks/explained.toml
    python scripts/notebook_mutants.py 03-induction-heads

The list names, for each notebook, the library functions its cells call: those it explains with a fault from
tests/mutants/ ("list: name of the fault"), the others with the reason why none is planted. Before the faults, each
notebook runs without any: it must agree with what is stored, and must call nothing that the list leaves out.
"""

import argparse
import json
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import mutants
import nbformat
from mutants import ROOT, Mutant

LIST = ROOT / "tests/notebooks/explained.toml"
# A fault that stops the import or names nothing is no plausible fault: the reader would never see the page.
NO_FAULT = {"SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError"}

# Forks of a process that has the slow imports behind it; reads (notebook, trace) and answers one line of JSON each.
SERVER = f"""
import json, os, signal, sys, tempfile
sys.path.insert(0, "scripts")
import numpy, torch, matplotlib.pyplot, transformer_lens.model_bridge, IPython
from nbval.plugin import get_sanitize_patterns
from pathlib import Path
import notebook_run
torch.set_num_threads(1)
patterns = dict(get_sanitize_patterns(notebook_run.SANITIZE.read_text()))
for line in sys.stdin:
    path, trace = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm({mutants.TIMEOUT})
        os.chdir(tempfile.mkdtemp())
        calls = notebook_run.Calls(Path(path).parent.parent / "src/circuitkit")
        if trace:
            with calls:
                found = notebook_run.departure(Path(path), patterns)
        else:
            found = notebook_run.departure(Path(path), patterns)
        os.write(writer, json.dumps([found, sorted(calls.names)]).encode())
        os._exit(0)
    os.close(writer)
    answer = b"".join(iter(lambda: os.read(reader, 65536), b""))
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(answer.decode() or json.dumps([[-1, "died", f"exit {{status}}"], []]), flush=True)
"""


def read(path: Path = LIST) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """For each notebook: `(function to fault, function to reason)`; reasons that hold everywhere are merged in."""
    table = tomllib.loads(path.read_text("utf-8"))
    everywhere = table.pop("aside", {})
    return {name: (entry["explains"], everywhere | entry.get("aside", {})) for name, entry in table.items()}


def own(name: str, path: Path = LIST) -> set[str]:
    """The functions that one notebook's entry names, without those that are set aside everywhere."""
    entry = tomllib.loads(path.read_text("utf-8"))[name]
    return entry["explains"].keys() | entry.get("aside", {}).keys()


def faults() -> dict[str, Mutant]:
    """Every fault of tests/mutants/ by `"list: name"`."""
    lists = sorted((ROOT / "tests/mutants").glob("*.toml"))
    return {f"{mutant.package}: {mutant.name}": mutant for path in lists for mutant in mutants.read(path)}


def wrong_names(listed: dict, known: dict[str, Mutant]) -> list[str]:
    """Entries that name no fault, or that are in both columns."""
    found = []
    for name, (explains, aside) in listed.items():
        found += [
            f"{name}: {function}: no fault called {fault!r}"
            for function, fault in explains.items()
            if fault not in known
        ]
        found += [f"{name}: {function} has a fault and a reason" for function in explains if function in aside]
    return found


class NotebookCopy(mutants.Copy):
    """A copy of the tree with a process that runs notebooks in it."""

    server = SERVER

    def run(self, name: str, trace: bool = False) -> tuple[list | None, list[str]]:
        self.process.stdin.write(json.dumps([str(self.root / f"book/{name}.ipynb"), trace]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def check(copy: NotebookCopy, name: str, explains: dict[str, str], aside: dict[str, str], known: dict) -> list[str]:
    """Everything that is wrong with one notebook; prints a line for each run."""
    cells = nbformat.read(ROOT / f"book/{name}.ipynb", as_version=4).cells
    start = time.perf_counter()
    found, called = copy.run(name, trace=True)
    print(f"{name}: {len(called)} functions called, {time.perf_counter() - start:.0f} s without a fault", flush=True)
    if found:
        return [f"{name} fails without any fault, in cell {found[0]}: {found[1]}: {found[2]}"]
    wrong = [
        f"{name} calls {function}, which the list leaves out" for function in called if function not in explains | aside
    ]
    for function, fault in explains.items():
        start = time.perf_counter()
        with copy.planted(known[fault]):
            found, _ = copy.run(name)
        told = "SURVIVED" if found is None else f"cell {found[0]} of {len(cells)}, {found[1]}: {found[2]}"
        print(f"  {function}: {fault}: {told} ({time.perf_counter() - start:.0f} s)", flush=True)
        if found is None:
            wrong.append(f"{name} does not notice: {function}: {fault}")
        elif found[1] in NO_FAULT:
            wrong.append(
                f"{name}: {function}: {fault}: no plausible fault, the code cannot run ({found[1]}: {found[2]})"
            )
    return wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help="names without .ipynb; all by default")
    parser.add_argument("--only", nargs="*", default=[], help="functions; all by default")
    options = parser.parse_args(arguments)
    listed, known, start = read(), faults(), time.perf_counter()
    if wrong := wrong_names(listed, known) + mutants.misfits(list(known.values())):
        print("The list no longer fits; mend it:", *wrong, sep="\n  ")
        return 2
    chosen = {name: entry for name, entry in listed.items() if not options.notebooks or name in options.notebooks}
    if options.only:
        chosen = {n: ({f: m for f, m in e.items() if f in options.only}, a | e) for n, (e, a) in chosen.items()}
    with tempfile.TemporaryDirectory() as folder:
        copy = NotebookCopy(Path(folder) / "tree")
        try:
            wrong = [
                line for name, (explains, aside) in chosen.items() for line in check(copy, name, explains, aside, known)
            ]
        finally:
            copy.close()
    planted = sum(len(explains) for explains, _ in chosen.values())
    print(*wrong, sep="\n")
    print(
        f"{planted} faults in {len(chosen)} notebooks, {len(wrong)} things wrong, {time.perf_counter() - start:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
