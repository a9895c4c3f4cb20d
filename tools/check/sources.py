"""The files of the project: what git lists, or, in a download without git, what .gitignore does not name."""

import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def walked(root: Path) -> list[str]:
    """The files below a folder that no line of its .gitignore names; our lines are names, and `/name` is one at the top."""
    lines = (root / ".gitignore").read_text("utf-8").split()

    def kept(path: str) -> bool:
        name = path.rpartition("/")[2]
        return name != ".git" and not any(
            fnmatch(path if line[0] == "/" else name, line.strip("/")) for line in lines
        )

    found = []
    for folder, below, names in os.walk(root):
        here = Path(folder).relative_to(root)
        below[:] = [name for name in below if kept((here / name).as_posix())]
        found += [path for name in names if kept(path := (here / name).as_posix())]
    return found


def files(*under: str, root: Path = ROOT) -> list[str]:
    """The paths of the project's files, new ones included; `under` leaves those in some folders, or of these names."""
    listed = None
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8")
    names = walked(root) if listed is None or listed.returncode else listed.stdout.split("\0")
    inside = [
        name
        for name in names
        if not under or any(name == part or name.startswith(f"{part}/") for part in under)
    ]
    return sorted(name for name in inside if name and (root / name).is_file())
