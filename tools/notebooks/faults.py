"""Plant one fault in each library function that a notebook explains, and require that the notebook fails.

    python -m tools faults                    every notebook of tests/notebooks/explained.toml
    python -m tools faults 03-induction-heads

The list names, for each notebook, the library functions its cells call: those it explains with a fault from
tests/mutants/ ("list: name of the fault"), the others with the reason why none is planted. Before the faults, each
notebook runs without any: it must agree with what is stored, and must call nothing that the list leaves out.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from tools.check import mutants
from tools.check.mutants import ROOT, Mutant
from tools.notebooks.execute import ENVIRONMENT

LIST = ROOT / "tests/notebooks/explained.toml"
# A fault that stops the import or names nothing is no plausible fault: the reader would never see the page.
NO_FAULT = {"SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError"}

# Forks of a process that has the slow imports behind it, each of which walks through one notebook.
SERVER = f"""
import numpy, torch, matplotlib.pyplot, transformer_lens.model_bridge, IPython
from pathlib import Path
from tools.notebooks import run as notebook_run
from tools.notebooks import walk as notebook_walk
torch.set_num_threads(1)
notebook_walk.serve(notebook_run.SANITIZE, {mutants.TIMEOUT})
"""


def read(path: Path = LIST) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """For each notebook: `(function to fault, function to reason)`; reasons that hold everywhere are merged in."""
    table = tomllib.loads(path.read_text("utf-8"))
    everywhere = table.pop("aside", {})
    return {
        name: (entry["explains"], everywhere | entry.get("aside", {}))
        for name, entry in table.items()
    }


def own(name: str, path: Path = LIST) -> set[str]:
    """The functions that one notebook's entry names, without those that are set aside everywhere."""
    entry = tomllib.loads(path.read_text("utf-8"))[name]
    return entry["explains"].keys() | entry.get("aside", {}).keys()


def faults() -> dict[str, Mutant]:
    """Every fault of tests/mutants/ by `"list: name"`."""
    lists = sorted((ROOT / "tests/mutants").glob("*.toml"))
    return {
        f"{mutant.package}: {mutant.name}": mutant
        for path in lists
        for mutant in mutants.read(path)
    }


def wrong_names(listed: dict, known: dict[str, Mutant]) -> list[str]:
    """Entries that name no fault, or that are in both columns."""
    found = []
    for name, (explains, aside) in listed.items():
        found += [
            f"{name}: {function}: no fault called {fault!r}"
            for function, fault in explains.items()
            if fault not in known
        ]
        found += [
            f"{name}: {function} has a fault and a reason"
            for function in explains
            if function in aside
        ]
    return found


def enclosing(mutant: Mutant) -> str | None:
    """The function or method, such as `Heads.OV`, inside whose body the fault lies; None if it lies outside of any."""
    [((_, at), part)] = mutants.places(mutant).items()
    return mutant.where if part.body is not None and part.body <= at else None


class NotebookCopy(mutants.Copy):
    """A copy of the tree with a process that runs notebooks in it."""

    server = SERVER

    def __init__(self, folder: Path):
        empty = folder / "empty"
        empty.mkdir(parents=True)
        os.environ |= {"EMPTY_FOLDER": str(empty), **ENVIRONMENT}
        super().__init__(folder / "tree")

    def walk(self, name: str, planted: dict[str, Mutant]) -> dict:
        """See `notebook_walk.walk`; `planted` are faults inside functions, by any key."""
        library = self.root / "src/circuitkit"
        faults = []
        for key, mutant in planted.items():
            path, source = mutants.faulty(mutant)
            file = path.relative_to("src/circuitkit").as_posix()
            faults.append(
                {"key": key, "file": file, "function": enclosing(mutant), "source": source}
            )
        self.process.stdin.write(
            json.dumps([str(self.root / f"book/{name}.ipynb"), str(library), faults]) + "\n"
        )
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def check(
    copy: NotebookCopy, name: str, explains: dict[str, str], aside: dict[str, str], known: dict
) -> list[str]:
    """Everything that is wrong with one notebook; prints a line for each fault."""
    start = time.perf_counter()
    inside = {
        function: known[fault] for function, fault in explains.items() if enclosing(known[fault])
    }
    answer = copy.walk(name, inside)
    print(f"{name}: {len(answer['called'])} functions called", flush=True)
    if departure := answer["control"]:
        return [
            f"{name} fails without any fault, in cell {departure[0]}: {departure[1]}: {departure[2]}"
        ]
    found = answer["found"]
    for function in (
        explains.keys() - inside.keys()
    ):  # in a constant or a default: planted in the file, from the top
        with copy.planted(known[explains[function]]):
            found[function] = copy.walk(name, {})["control"]
    wrong = [
        f"{name} calls {f}, which the list leaves out"
        for f in answer["called"]
        if f not in explains | aside
    ]
    for function, fault in explains.items():
        departure = found[function]
        told = (
            "SURVIVED"
            if departure is None
            else f"cell {departure[0]}, {departure[1]}: {departure[2]}"
        )
        print(f"  {function}: {fault}: {told}", flush=True)
        if departure is None:
            wrong.append(f"{name} does not notice: {function}: {fault}")
        elif departure[1] in NO_FAULT:
            wrong.append(
                f"{name}: {function}: {fault}: no plausible fault, the code cannot run: {departure[2]}"
            )
    print(f"  {len(explains)} faults in {time.perf_counter() - start:.0f} s", flush=True)
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
    chosen = {
        name: entry
        for name, entry in listed.items()
        if not options.notebooks or name in options.notebooks
    }
    if options.only:
        chosen = {
            n: ({f: m for f, m in e.items() if f in options.only}, a | e)
            for n, (e, a) in chosen.items()
        }
    with tempfile.TemporaryDirectory() as folder:
        copy = NotebookCopy(Path(folder))
        try:
            wrong = [
                line
                for name, (explains, aside) in chosen.items()
                for line in check(copy, name, explains, aside, known)
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
