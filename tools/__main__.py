"""The tools that make the book.

python -m tools              list them
python -m tools NAME [...]   run one; most of them explain themselves with --help
"""

import ast
import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def commands() -> dict[str, tuple[str, str]]:
    """Name of each command -> the module that runs it, and the first line of its docstring."""
    found = {}
    for path in sorted(FOLDER.glob("*/*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        if "main" in functions:
            first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
            module = f"tools.{path.parent.name}.{path.stem}"
            found[path.stem.replace("_", "-")] = (module, first_line)
    return found


def main() -> int:
    known = commands()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("python -m tools NAME [...]\n")
        for command, (_, first_line) in known.items():
            print(f"  {command:<20} {first_line}")
        return 0
    if name not in known:
        print(f"There is no tool {name!r}. The tools are: {', '.join(known)}.", file=sys.stderr)
        return 2
    sys.argv = [f"python -m tools {name}", *sys.argv[2:]]
    return import_module(known[name][0]).main() or 0


if __name__ == "__main__":
    sys.exit(main())
