"""The tools that make the book.

python -m tools              list them
python -m tools NAME [...]   run one
"""

import sys
from importlib import import_module

MODULES = {
    "address": "tools.publish.address",
    "archive": "tools.publish.archive",
    "cut-wire": "tools.publish.cut_wire",
    "execute": "tools.notebooks.execute",
    "lab-still": "tools.publish.lab_still",
    "manifest": "tools.check.manifest",
    "mutants": "tools.check.mutants",
    "reports": "tools.publish.reports",
    "setup-cell": "tools.notebooks.setup_cell",
    "stubs": "tools.notebooks.stubs",
}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in MODULES:
        print(f"The tools are: {', '.join(MODULES)}.", file=sys.stderr)
        return 2
    sys.argv = [f"python -m tools {name}", *sys.argv[2:]]
    return import_module(MODULES[name]).main() or 0


if __name__ == "__main__":
    sys.exit(main())
