"""One door to everything that makes the book.

python -m tools                 what there is
python -m tools NAME [...]      run it; `--help` says more
"""

import ast
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent


def commands() -> dict[str, tuple[str, str]]:
    """Every module of a room that has a `main`: its name on the command line, its place, its first line."""
    found = {}
    for path in sorted(HERE.glob("*/*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            place = f"tools.{path.parent.name}.{path.stem}"
            found[path.stem.replace("_", "-")] = (
                place,
                (ast.get_docstring(tree) or "").partition("\n")[0],
            )
    return found


def main(arguments: list[str] | None = None) -> int:
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    known = commands()
    if name in ("-h", "--help"):
        print("python -m tools NAME [...]\n")
        for room in sorted({place.split(".")[1] for place, _ in known.values()}):
            print(f"{room}: {import_module(f'tools.{room}').__doc__}")
            for command, (place, line) in known.items():
                if place.split(".")[1] == room:
                    print(f"  {command:<28} {line}")
        return 0
    if name not in known:
        print(
            f"python -m tools has no {name!r}; it has {', '.join(sorted(known))}", file=sys.stderr
        )
        return 2
    sys.argv = [f"python -m tools {name}", *rest]
    return import_module(known[name][0]).main() or 0


if __name__ == "__main__":
    sys.exit(main())
