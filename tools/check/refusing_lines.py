"""How much of the library refuses bad input, in lines.

    python -m tools refusing-lines                     the library in src/circuitkit
    python -m tools refusing-lines some/other/src      another copy, such as an older one

A line refuses if it belongs to one of these statements:

* a `raise` of a `ValueError` or `TypeError`, or of what a call returns (`raise unknown_model(name)`);
* a branch, a loop, a `with` or a handler that holds nothing but statements that refuse, its condition included;
* a statement that makes a part of a message: a name that only the `raise` statements of the function read, or a list that
  one of them joins;
* a call, as a statement of its own, of a function more than half of whose code refuses;
* a rule below `@public`, that is a decorator such as `@must(...)`, and every function and value of the module it names;
* in a file called `_contract.py` every line of code: the kinds, the rules, their tests and their words. Only its imports
  and the functions that wrap others and hold neither a condition nor a message are left out.

The share is of all lines of all files. `exercises` and `claims` are not counted: they judge answers, not arguments.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ("exercises", "claims")
WRAPPING = ("_parameters", "_guarded", "public", "Rule")
PLAIN = ("dataclass", "cache", "no_grad", "contextmanager", "property")
KINDS = ("ValueError", "TypeError")
LIMIT = 0.08
Function = ast.FunctionDef | ast.AsyncFunctionDef


def code(node: ast.AST) -> set[int]:
    """The lines of a statement, a function's docstring left out."""
    lines = set(range(node.lineno, node.end_lineno + 1))
    body = getattr(node, "body", [])
    if (
        isinstance(node, Function | ast.ClassDef | ast.Module)
        and ast.get_docstring(node, clean=False) is not None
    ):
        lines -= set(range(body[0].lineno, body[0].end_lineno + 1))
    return lines


def complaints(function: ast.AST) -> set[str]:
    """Names that serve the function's `raise` statements alone: lists that are filled for them, and parts of messages."""
    raises = [node for node in ast.walk(function) if isinstance(node, ast.Raise)]
    inside = [
        node for statement in raises for node in ast.walk(statement) if isinstance(node, ast.Name)
    ]
    loads = [
        n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    ]
    elsewhere = {name.id for name in loads if name not in inside}
    filled = set()
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "append"
        ):
            filled |= {node.func.value.id} if isinstance(node.func.value, ast.Name) else set()
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            filled.add(node.target.id)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.ListComp):
            filled |= {name.id for name in node.targets if isinstance(name, ast.Name)}
    return {name.id for name in inside if name.id in filled or name.id not in elsewhere}


def called(node: ast.AST) -> str:
    """The bare name of what an expression calls."""
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Attribute):
            return node.attr
        node = node.func
    return getattr(node, "id", "")


class Refusals:
    """The lines of one function that refuse."""

    def __init__(self, function: ast.AST, refusers: set[str]):
        self.refusers, self.names = refusers, complaints(function)
        self.lines: set[int] = set()
        for statement in getattr(function, "body", []):
            self.visit(statement)

    def visit(self, node: ast.AST) -> bool:
        """Whether the whole statement refuses; its lines are kept."""
        whole = self.refuses(node)
        if whole:
            self.lines |= code(node)
        return whole

    def refuses(self, node: ast.AST) -> bool:
        if isinstance(node, Function | ast.ClassDef):
            return False  # counted by itself
        if isinstance(node, ast.Raise):
            raised = called(node.exc) if node.exc else ""
            return raised in KINDS or (
                bool(raised) and not raised.endswith(("Error", "_NotDone", "Misfit"))
            )
        if isinstance(node, ast.If | ast.For | ast.While | ast.With):
            parts = [self.visit(child) for child in [*node.body, *getattr(node, "orelse", [])]]
            return all(parts)
        if isinstance(node, ast.Try):
            body = [self.visit(child) for child in [*node.body, *node.orelse, *node.finalbody]]
            for handler in node.handlers:
                if all([self.visit(child) for child in handler.body]):
                    self.lines |= code(handler)
            return all(body) and all(code(handler) <= self.lines for handler in node.handlers)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            adds = isinstance(function, ast.Attribute) and function.attr == "append"
            adds = adds and isinstance(function.value, ast.Name) and function.value.id in self.names
            return adds or called(node.value) in self.refusers
        if isinstance(node, ast.AugAssign):
            return isinstance(node.target, ast.Name) and node.target.id in self.names
        if isinstance(node, ast.Assign):
            return all(
                isinstance(name, ast.Name) and name.id in self.names for name in node.targets
            )
        return False


def functions(tree: ast.AST) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def refusers(trees: dict[Path, ast.Module]) -> set[str]:
    """Names of the functions more than half of whose code refuses; found again until no more turn up."""
    known: set[str] = set()
    while True:
        found = set()
        for tree in trees.values():
            for function in functions(tree):
                inside = code(function) - set().union(
                    *(code(f) for f in functions(function) if f is not function)
                )
                complains = "problem" in function.name and bool(
                    ast.unparse(function).count("append")
                )
                if complains or len(Refusals(function, known).lines) > len(inside) / 2:
                    found.add(function.name)
        if found <= known:
            return known
        known |= found


def measure(root: Path) -> dict[str, tuple[int, int]]:
    """`(lines that refuse, all lines)` of each package under `root`."""
    paths = [p for p in sorted(root.rglob("*.py")) if p.relative_to(root).parts[0] not in OUTSIDE]
    trees = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    known, table = refusers(trees), {}
    for path, tree in trees.items():
        text = path.read_text("utf-8").splitlines()
        lines = Refusals(tree, known).lines
        for function in functions(tree):
            lines |= Refusals(function, known).lines
        asked = set()
        for node in ast.walk(tree):
            names = [called(decorator) for decorator in getattr(node, "decorator_list", [])]
            for decorator in node.decorator_list if "public" in names else ():
                if called(decorator) not in ("public", *PLAIN):
                    lines |= code(decorator)
                    asked |= {name.id for name in ast.walk(decorator) if isinstance(name, ast.Name)}
        for node in tree.body if path.name != "_contract.py" else ():
            targets = {
                name.id for name in getattr(node, "targets", []) if isinstance(name, ast.Name)
            }
            if (isinstance(node, Function) and node.name in asked) or targets & asked:
                lines |= code(node)
        if path.name == "_contract.py":
            strings = [
                n
                for n in ast.walk(tree)
                if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
            ]
            lines = {
                n
                for n, line in enumerate(text, 1)
                if line.strip() and not line.strip().startswith("#")
            }
            left_out = [
                n
                for n in tree.body
                if isinstance(n, ast.Import | ast.ImportFrom) or getattr(n, "name", "") in WRAPPING
            ]
            raises = [n for node in left_out for n in ast.walk(node) if isinstance(n, ast.Raise)]
            lines -= set().union(*(code(node) for node in strings + left_out))
            lines |= set().union(*(code(node) for node in raises))
        parts = path.relative_to(root).parts
        name = parts[0] if len(parts) > 1 else "(root)"
        before = table.get(name, (0, 0))
        table[name] = (before[0] + len(lines), before[1] + len(text))
    return table


def share(table: dict[str, tuple[int, int]]) -> float:
    return sum(refusing for refusing, _ in table.values()) / sum(
        lines for _, lines in table.values()
    )


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src/circuitkit"
    table = measure(root)
    for name, (refusing, lines) in table.items():
        print(f"{name:<16} {refusing:>5} of {lines:>5} lines refuse  {refusing / lines:6.1%}")
    total = [sum(column) for column in zip(*table.values(), strict=True)]
    print(
        f"{'together':<16} {total[0]:>5} of {total[1]:>5} lines refuse  {share(table):6.1%}   (limit {LIMIT:.0%})"
    )
    return 0 if share(table) < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
