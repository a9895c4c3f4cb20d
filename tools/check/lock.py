"""Write requirements.txt from the environment that runs this script: exact versions, nothing of this machine.

make lock
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = {"pip", "circuitkit-book"}
HEAD = """\
# The exact environment in which the book is built and tested (Python 3.11, CPU).
# Made from a working environment with `make lock`; the ranges the library really needs are in pyproject.toml.
"""


def main() -> None:
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--all"], capture_output=True, text=True, check=True
    )
    lines = []
    for line in frozen.stdout.splitlines():
        name, exact, version = line.partition("==")
        if exact and not name.startswith("#") and name.lower() not in OWN:
            # A local tag such as +cpu names a build, not a version: without it either build is found.
            lines.append(f"{name}=={version.partition('+')[0]}")
    (ROOT / "requirements.txt").write_text(HEAD + "\n".join(sorted(lines, key=str.lower)) + "\n")


if __name__ == "__main__":
    main()
