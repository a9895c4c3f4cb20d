"""Every assert and every alt text of every notebook, as a stored list: what a page holds itself to cannot shrink unseen.

    python -m tools asserts            compare the notebooks with tests/notebooks/asserts.toml
    python -m tools asserts --write    write the list anew; its diff is what a reviewer reads

An entry is an assert as Python prints it, behind the headers of everything it stands in. So a bound that moved, an assert
that is gone, and one inside `try`, `if False`, `suppress` or behind a `return` are all another entry, and so is one in a
cell that is excused from comparison. A call of a notebook's own function that holds an assert counts as an assert.
"""

import argparse
import ast
import copy
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import nbformat

from tools.notebooks.execute import ROOT, notebooks
from tools.notebooks.gate import excused, plain_python

LIST = ROOT / "tests/notebooks/asserts.toml"
HEAD = "# What every notebook asserts and what its figures say they show. Written by `python -m tools asserts --write`.\n"
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def entries(path: Path) -> list[str]:
    """What one notebook asserts, in its order."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    trees = [ast.parse(plain_python(cell.source)) for cell in cells]
    helpers = {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(part, ast.Assert) for part in ast.walk(node))
    }
    found = []
    for cell, tree in zip(cells, trees, strict=True):
        around = [f"excused ({excused(cell)})"] if excused(cell) else []
        if magic := re.match(r"\s*(%%\w+)", cell.source):
            around.append(magic[1])
        found += [" > ".join(entry) for entry in stated(tree.body, around, helpers)]
    return found


def stated(body: list[ast.stmt], around: list[str], helpers: set[str]) -> Iterator[list[str]]:
    """The entries of a block of statements, each a path from the outermost header to the assert."""
    for node in body:
        own = copy.copy(node)
        blocks = [
            (name, getattr(node, name))
            for name in BLOCKS
            if isinstance(getattr(node, name, None), list)
        ]
        for name, _ in blocks:
            setattr(own, name, [])
        if isinstance(node, ast.Assert):
            yield [*around, f"assert {ast.unparse(node.test)}"]
        for part in ast.walk(own):
            if isinstance(part, ast.Call) and getattr(part.func, "id", None) in helpers:
                yield [*around, ast.unparse(part)]
            if isinstance(part, ast.keyword) and part.arg == "alt":
                yield [*around, f"alt={ast.unparse(part.value)}"]
        for name, block in blocks:
            yield from stated(
                block, [*around, header(own) + ("" if name == "body" else f" {name}")], helpers
            )
        if isinstance(node, LEAVES) or re.match(r"(sys\.)?(exit|quit|_exit)\(", ast.unparse(node)):
            around = [*around, f"after {ast.unparse(node)}"]


def header(node: ast.AST) -> str:
    """The first line of a compound statement, without its blocks."""
    bare = copy.copy(node)
    if isinstance(bare, ast.Try | ast.TryStar):
        return "try"
    if hasattr(bare, "body"):
        bare.body = [ast.Pass()]
    if isinstance(bare, ast.Match):
        return f"match {ast.unparse(bare.subject)}"
    return " ".join(ast.unparse(bare).split("\n")[:-1]).strip().removesuffix(":")


def listed(paths: list[Path] | None = None) -> dict[str, list[str]]:
    """The entries of every notebook by its path below book/."""
    return {str(path.relative_to(ROOT / "book")): entries(path) for path in paths or notebooks()}


def written(table: dict[str, list[str]]) -> str:
    """The stored form: one line for each entry."""
    parts = [
        f"{json.dumps(name)} = [\n"
        + "".join(f"  {json.dumps(entry, ensure_ascii=False)},\n" for entry in found)
        + "]\n"
        for name, found in table.items()
    ]
    return "\n".join([HEAD, *parts])


def differences(stored: str, table: dict[str, list[str]]) -> list[str]:
    """Lines of a diff between the stored list and the notebooks; empty where they agree."""
    if tomllib.loads(stored) == table:
        return []
    return list(
        unified_diff(
            stored.splitlines(),
            written(table).splitlines(),
            "stored",
            "notebooks",
            lineterm="",
            n=0,
        )
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the list anew")
    options = parser.parse_args(arguments)
    table = listed()
    found = differences(LIST.read_text("utf-8") if LIST.exists() else "", table)
    print(*found, sep="\n")
    if options.write:
        LIST.write_text(written(table), "utf-8")
    print(
        f"{sum(map(len, table.values()))} entries in {len(table)} notebooks, {len(found)} lines differ"
    )
    return 1 if found and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
